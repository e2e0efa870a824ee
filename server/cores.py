"""How many threads the arithmetic gets: one for each physical core this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> int:
    """Physical cores among the CPUs this process may run on, no more than its container's quota.

    A second thread on the same core makes matrix products slower, not faster. OMP_NUM_THREADS, if set, wins.
    """
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(asked) > 0:
        return int(asked)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota()))


def _core(cpu: int) -> str:
    """What names the physical core of a CPU; the CPU itself where the system doesn't say."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> int:
    """Whole CPUs the container may use at a time; a large number without a limit."""
    try:
        limit, period = _QUOTA.read_text().split()
        return max(1, round(int(limit) / int(period)))
    except (OSError, ValueError):
        return 1 << 16
