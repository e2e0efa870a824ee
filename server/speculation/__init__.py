"""Drafting, exact verification, sampling."""
