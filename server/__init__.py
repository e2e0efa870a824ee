"""The engine, its process and its HTTP interface."""

__version__ = "0.1.0"
