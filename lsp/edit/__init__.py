"""Edits of a selection: what is asked, what the answer changes, whether it may be applied."""
