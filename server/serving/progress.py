"""How far a long prefill is, told now and then: whoever waits for it sees that something happens, and what is left."""

from __future__ import annotations

from collections.abc import Callable

from server.request import PrefillEvent

QUIET_S = 0.5
"""A prefill that is over sooner tells nothing."""
EVERY_S = 0.25
"""Between two events at least, but for the last."""


class PrefillProgress:
    """The events of one prompt of ``total`` tokens, whose prefill begins now. If there are any, the last one says that
    all is done."""

    def __init__(self, total: int, show: Callable[[PrefillEvent], None], clock: Callable[[], float]) -> None:
        self._total = total
        self._show = show
        self._clock = clock
        self._next = clock() + QUIET_S
        self._told = False

    def reached(self, done: int) -> None:
        """So many tokens are there."""
        now = self._clock()
        if self._told if done >= self._total else now >= self._next:
            self._told = True
            self._next = now + EVERY_S
            self._show(PrefillEvent(done, self._total))
