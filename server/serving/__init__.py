"""What the engine's worker does with requests: their order, one answer in steps, its text, its caller's end."""
