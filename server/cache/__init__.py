"""Prefix reuse: kept KV and recurrent-state checkpoints."""
