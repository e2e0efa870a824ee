"""The embedded default model and the scripts that made it."""
