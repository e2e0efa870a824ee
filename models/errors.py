"""What ends a training run early."""

from __future__ import annotations


class TrainingError(Exception):
    """Training can't go on, or would go wrong. ``str()`` says why and what to do."""
