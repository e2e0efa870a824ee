"""The host's side of an answer: which plan a launch runs, what it is given, and which tokens it gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from server.kernel.model import KernelModel
from server.kernel.plan import Plan, build_plan
from server.kernel.sequence import Buffers, count, set_counts

Launch = Callable[[Plan, Buffers], None]
"""Runs a plan on buffers: the interpreter's `run`, or a kernel."""


class Cycles:
    """Launches for one sequence, taken over into `at` (see `sequence.take_over`)."""

    def __init__(self, model: KernelModel, sms: int, at: Buffers, launch: Launch) -> None:
        self.at = at
        self._launch = launch
        self._plan = lru_cache(maxsize=None)(lambda rows, drafts: build_plan(model, sms, rows, drafts))

    def cycle(self, drafts: int, given: Sequence[int] | None = None) -> list[int]:
        """One launch -> the answer's next 1 to 1 + drafts tokens: the accepted drafts and the token behind them.

        given: drafts to verify in place of the MTP head's, any number up to 15; the head makes its own all the same.
        """
        rows = 1 + (drafts if given is None else len(given))
        if given is not None:
            self.at["given"][: len(given)] = torch.tensor(list(given), dtype=torch.int64)
        set_counts(self.at, external=int(given is not None))
        self._launch(self._plan(rows, drafts), self.at)
        accepted: list[int] = self.at["accepted"][: count(self.at, "fold")].tolist()
        return accepted
