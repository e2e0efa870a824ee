"""The engine as a process: where its files lie, how it is started, how it ends."""
