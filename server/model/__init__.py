"""Architecture, tokenizer, reference forward pass, sequence state."""
