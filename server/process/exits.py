"""Exit codes of ``draftline serve``, which the client that started it understands."""

from __future__ import annotations

EXIT_STOPPED = 0
"""Stopped, or idle for too long."""
EXIT_FAILED = 1
"""The line on stderr says why."""
EXIT_ALREADY_RUNNING = 3
"""Another engine of this user runs."""
