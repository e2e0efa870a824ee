"""HTTP endpoints of the engine process."""
