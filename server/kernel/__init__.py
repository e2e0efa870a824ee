"""The decode cycle as data for one persistent kernel: plan, checker, and an interpreter in torch."""
