"""How much memory this machine has to give."""

from __future__ import annotations

import os
from pathlib import Path


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
