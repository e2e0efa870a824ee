"""How long a request that typing caused waits: it follows how fast the user types and how fast the engine answers.

An engine that answers between two keys needs no wait. One that is slower would be asked for nothing at each key of a
burst, so the request waits a little longer than the usual time between two keys: when no key came by then, the user has
paused.
"""

from __future__ import annotations

from typing import Literal

LONGEST_MS = 150.0
"""The bound of ``auto``: somebody who types slowly doesn't type in bursts."""
FIRST_MS = 20.0
"""As long as nothing is measured: enough for keys that an editor sends in one go."""
BURST_MS = 1000.0
"""Keys further apart belong to no burst and say nothing about the rhythm."""
BEYOND_RHYTHM = 1.25
_WEIGHT = 0.2
"""Of the newest measurement."""


class Debounce:
    """The measurements of one user. Times are in seconds of any clock that doesn't go back."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._gap_ms: float | None = None
        self._answer_ms: float | None = None

    def key(self, now: float) -> None:
        """A document changed, by typing or otherwise."""
        if self._last is not None and (gap := (now - self._last) * 1000) <= BURST_MS:
            self._gap_ms = _average(self._gap_ms, gap)
        self._last = now

    def answered(self, total_ms: float) -> None:
        """The engine finished an item, so long after it was asked."""
        self._answer_ms = _average(self._answer_ms, total_ms)

    def wait_ms(self, setting: int | Literal["auto"]) -> float:
        """``setting`` is the bound; with ``auto`` it is LONGEST_MS."""
        bound = LONGEST_MS if setting == "auto" else float(setting)
        if self._gap_ms is None or self._answer_ms is None:
            return min(FIRST_MS, bound) if setting == "auto" else bound
        if self._answer_ms <= self._gap_ms:
            return 0.0
        return min(BEYOND_RHYTHM * self._gap_ms, bound)


def _average(before: float | None, new: float) -> float:
    return new if before is None else (1 - _WEIGHT) * before + _WEIGHT * new
