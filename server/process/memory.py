"""Whether a model fits into this machine's memory, before anything of it is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.gguf.reader import ModelFile

RUNTIME_BYTES = 400 * 2**20
"""What the process itself takes: Python, torch and its kernels."""


class TooLittleMemory(Exception):  # noqa: N818
    """The model needs more memory than there is. str() is one line with both numbers."""


def available_memory() -> int:
    """Bytes that can be taken without swapping: the system's figure, or less inside a container with a limit."""
    amounts = [_system_memory(), *_container_memory()]
    return min(amounts)


def _system_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # No figure of what is free here (macOS): what is installed is the only bound that is certain.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_memory() -> list[int]:
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return []
    if not limit.isdigit():
        return []
    # Pages of files are given back when memory is short, so they don't count as used.
    return [int(limit) - used + int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))]


def check_memory(file: ModelFile) -> None:
    """Raises TooLittleMemory when a model can't fit in the form that the engine keeps it in."""
    import torch

    from server.model import linear
    from server.model.weights import loaded_bytes

    weights = loaded_bytes(file, half=linear.can_halve("cpu", torch.float32))
    need = weights + RUNTIME_BYTES
    have = available_memory()
    if need > have:
        raise TooLittleMemory(
            f"{file.path} needs about {_gigabytes(need)} of memory ({_gigabytes(weights)} of it for the weights), "
            f"and {_gigabytes(have)} are available; free some, or name a smaller model with --model"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
