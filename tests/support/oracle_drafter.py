"""Drafters that know the true continuation and are wrong on purpose, so that every accepted count occurs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from server.speculation.drafter import Draft


class OracleDrafter:
    """Proposes the true continuation, wrong from row ``wrong_at(cycle)`` on.

    truth: the answer's tokens without drafts. inner: a real drafter that goes on caring for the MTP cache.
    """

    def __init__(
        self,
        truth: Sequence[int],
        depth: int,
        wrong_at: Callable[[int], int],
        vocabulary: int,
        inner: Any = None,
    ) -> None:
        self._truth = list(truth)
        self._depth = depth
        self._wrong_at = wrong_at
        self._vocabulary = vocabulary
        self._inner = inner
        self._given = 0
        self.cycles = 0

    def propose(self, token: int, limit: int, another: Callable[[Sequence[float | None]], bool]) -> Draft:
        if self._inner is not None:
            self._inner.propose(token, limit, another)
        at = self._given + 1  # index in the answer of the first drafted token
        rows = min(self._depth, limit, len(self._truth) - at)
        wrong = self._wrong_at(self.cycles)
        self.cycles += 1
        tokens = [
            self._truth[at + row] if row < wrong else (self._truth[at + row] + 1) % self._vocabulary
            for row in range(max(0, rows))
        ]
        return Draft(tokens, [None] * len(tokens))

    def settle(self, kept: Sequence[int], before: Tensor, hidden: Tensor) -> None:
        self._given += len(kept)
        if self._inner is not None:
            self._inner.settle(kept, before, hidden)

    def finish(self) -> None:
        if self._inner is not None:
            self._inner.finish()


class AlwaysDraft:
    """A depth controller without opinions: drafts ``depth`` rows in every cycle."""

    rate = 0.0

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.accepted: list[int] = []

    def another(self, confidences: Sequence[float | None]) -> bool:
        return len(confidences) < self.depth

    def observe(self, confidences: Sequence[float | None], accepted: int, seconds: float) -> None:
        self.accepted.append(accepted)
