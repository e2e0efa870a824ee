"""How many threads the arithmetic gets on this machine at this moment."""
