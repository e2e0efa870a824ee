"""How fast and how exact the decode kernel is on this machine's GPU: ``python -P -m bench.kernel``."""
