"""Measurements that a stranger can run."""
