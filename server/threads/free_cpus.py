"""How many processors other programs leave to this process: what decides whether several threads can help at all.

The threads of a matrix product wait for each other, and they wait spinning. Next to two busy programs on two cores a
prefill on two threads takes ten times as long as on one, so this must be known before a step, not learnt from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

WINDOW_S = 0.1
"""What others used is averaged over at least so much time; the kernel counts in ticks of a hundredth of a second."""

_STAT = Path("/proc/stat")


class FreeCpus:
    """Call it for the number of processors that were free for this process between its last measurement and now.

    Those that this process used count as free. At least 1; all that it may run on where the system doesn't tell.
    """

    def __init__(
        self,
        cpus: Collection[int] | None = None,
        *,
        read: Callable[[], str] | None = None,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """cpus: those this process may run on. read: the text of /proc/stat. own: processor seconds of this process."""
        self._cpus = allowed_cpus() if cpus is None else frozenset(cpus)
        self._read = read or _read_stat
        self._own = own
        self._clock = clock
        self._free = len(self._cpus)
        self._last = self._measure()

    def __call__(self) -> int:
        if self._clock() - self._last[0] >= WINDOW_S:
            before, self._last = self._last, self._measure()
            seconds, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
            others = max(0.0, busy - own) / seconds
            self._free = max(1, int(len(self._cpus) - others + 0.5))
        return self._free

    def _measure(self) -> tuple[float, float, float]:
        """The time, what all programs used of the allowed processors, and what this one did; in seconds."""
        return self._clock(), busy_seconds(self._read(), self._cpus), self._own()


def allowed_cpus() -> frozenset[int]:
    """The processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def busy_seconds(stat: str, cpus: Collection[int]) -> float:
    """Seconds that ``cpus`` have been busy since the start of the system, from the text of /proc/stat (see proc(5))."""
    names = {f"cpu{cpu}" for cpu in cpus}
    ticks = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name in names:
            user, nice, system, _idle, _waiting, *interrupts = map(int, numbers[:8])
            ticks += user + nice + system + sum(interrupts)
    return ticks / os.sysconf("SC_CLK_TCK")


def _read_stat() -> str:
    try:
        return _STAT.read_text()
    except OSError:
        return ""
