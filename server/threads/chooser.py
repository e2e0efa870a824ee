"""How many threads the arithmetic gets: by the machine's cores at first, then by what proved fastest lately.

The threads of one matrix product wait for each other. While another program keeps one core busy, each product
waits until that core is free again, and two threads can be ten times slower than one. So no more threads run than
others leave processors for, and within that counts are compared all the time, cheaply, and the fastest one runs. This
is only done where every count gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from server.threads.free_cpus import allowed_cpus

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_BETTER = 0.93
"""Another count takes over when it costs less than this share of the present one's."""
_PROBE_FIRST, _PROBE_LAST = 8, 1024
"""Steps until the next probe of another count: doubled after each that found nothing better."""


def physical_cores() -> int:
    """Physical cores among the CPUs this process may run on, no more than its container's quota.

    A second thread on the same core makes matrix products slower, not faster. OMP_NUM_THREADS, if set, wins.
    """
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(asked) > 0:
        return int(asked)
    cores = {_core(cpu) for cpu in allowed_cpus()}
    return max(1, min(len(cores), _quota()))


def thread_counts(most: int) -> list[int]:
    """Counts worth comparing: powers of two, and ``most``."""
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


class ThreadChooser:
    """Which thread count to use for one kind of step; costs are seconds per unit of its work."""

    def __init__(
        self,
        costs: dict[int, float],
        free: Callable[[], int],
        *,
        set_threads: Callable[[int], None] = torch.set_num_threads,
    ) -> None:
        """costs: the counts to choose from and a first measurement of each. free: processors left by others."""
        self._counts = sorted(costs)
        self._costs = dict(costs)
        self._best = min(self._counts, key=lambda count: costs[count])
        self._free = free
        self._set_threads = set_threads
        self._now = self._best
        self._limited = False
        self._until_probe = self._interval = _PROBE_FIRST
        self._upwards = False

    def begin(self, *, measured: bool = True) -> None:
        """Set the number of threads for the step that follows; ``measured``: its cost will be told to ``end``."""
        free = self._free()
        possible = [count for count in self._counts if count <= free] or self._counts[:1]
        self._limited = self._best not in possible
        self._now = possible[-1] if self._limited else self._best
        self._until_probe -= measured
        if measured and self._until_probe <= 0 and not self._limited and (others := self._neighbours(possible)):
            self._upwards = not self._upwards
            self._now = others[-1] if self._upwards else others[0]
            self._until_probe = self._interval
        self._set_threads(self._now)

    def end(self, cost: float) -> None:
        """What the measured step since ``begin`` cost."""
        if self._limited:  # what a count costs on a busy machine says nothing about the others
            return
        known = self._costs[self._now]
        probed = self._now != self._best
        self._costs[self._now] = cost if probed else known + 0.2 * (min(cost, 4 * known) - known)
        fastest = min(self._counts, key=lambda count: self._costs[count])
        if self._costs[fastest] < _BETTER * self._costs[self._best]:
            self._best = fastest
            self._interval = self._until_probe = _PROBE_FIRST
        elif probed:
            self._interval = self._until_probe = min(2 * self._interval, _PROBE_LAST)

    def _neighbours(self, possible: Sequence[int]) -> Sequence[int]:
        at = possible.index(self._best)
        return [possible[i] for i in (at - 1, at + 1) if 0 <= i < len(possible)]


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
