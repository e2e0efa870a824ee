"""The lock that makes sure of one engine per user: held by the engine process from start to end.

The kernel drops it when the process ends, however it ends, so whoever holds it may replace a stale socket.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class EngineLock:
    """An exclusive lock on a file that holds the owner's process id."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path) -> Self | None:
        """The lock, or None while another process holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def close(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def lock_holder(path: Path) -> int | None:
    """Process id of the engine that holds the lock; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.pread(descriptor, 32, 0).strip()
        return int(written) if written.isdigit() else None
    finally:
        os.close(descriptor)
    return None
