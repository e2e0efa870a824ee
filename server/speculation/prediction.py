"""Where an answer stands in a text that it copies in part: the old text of an edit.

As long as the answer's tokens are those of the old text, the place moves on with them. At the first that isn't, it is
found again: the place behind the longest match with the answer's last tokens, of equal ones the nearest to where
copying stopped. So it goes on behind an insertion, a deletion, a replaced line or a moved block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

LONGEST = 16
"""Tokens that are matched at most."""
LOOKED_AT = 64
"""Places on each side of where copying stopped, at most, that are looked at: a common token may have thousands."""
NEAR = 32
"""A match of a single token says little: it counts so many tokens around where copying stopped."""


class Prediction:
    """Follows one answer, token by token, through the tokens of ``old``."""

    run = 0
    """So many of the answer's last tokens stand before the place; matches count LONGEST at most when it is found."""

    def __init__(self, old: Sequence[int]) -> None:
        self._old = list(old)
        self._behind: dict[int, list[int]] = {}
        for place, token in enumerate(self._old, start=1):
            self._behind.setdefault(token, []).append(place)
        self._recent: deque[int] = deque(maxlen=LONGEST)
        self._place: int | None = 0
        self._stopped = 0

    def ahead(self, limit: int) -> list[int]:
        """At most ``limit`` tokens that come next if the answer goes on copying; none where it doesn't copy."""
        return [] if self._place is None else self._old[self._place : self._place + limit]

    def push(self, token: int) -> bool | None:
        """The answer's next token; whether it was the one that stood ahead, None if there was none."""
        ahead = self.ahead(1)
        self._recent.append(token)
        if ahead == [token] and self._place is not None:
            self._place += 1
            self.run += 1
            return True
        if self._place is not None:
            self._stopped = self._place
        self._place, self.run = self._find()
        return False if ahead else None

    def _find(self) -> tuple[int | None, int]:
        """-> the place behind the answer's last tokens, and how many of them match."""
        *before, last = self._recent
        places = self._behind.get(last, [])
        middle = bisect_left(places, self._stopped)
        found, length, distance = None, 0, 0
        for place in places[max(0, middle - LOOKED_AT) : middle + LOOKED_AT]:
            matching, away = self._matching(place, before), abs(place - self._stopped)
            if (matching > 1 or away <= NEAR) and (-matching, away) < (-length, distance):
                found, length, distance = place, matching, away
        return found, length

    def _matching(self, place: int, before: Sequence[int]) -> int:
        """How many tokens before ``place`` are the answer's last; the last one of all is known to be."""
        count = 1
        while count <= min(len(before), place - 1) and self._old[place - 1 - count] == before[-count]:
            count += 1
        return count
