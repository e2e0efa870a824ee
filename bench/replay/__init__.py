"""Typing edits of a real history into a workspace, to count which tokens of the prompts have to be computed."""
