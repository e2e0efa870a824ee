"""The host's side of an answer: which plan a launch runs, what it is given, and which tokens it gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from server.kernel.model import KernelModel
from server.kernel.plan import Plan, build_plan
from server.kernel.sequence import Buffers, count, set_counts

Launch = Callable[[Plan, Buffers], None]
"""Runs a plan on buffers: the interpreter's `run`, or a kernel."""


class Cycles:
    """Launches for one sequence, taken over into `at` (see `sequence.take_over`)."""

    def __init__(self, model: KernelModel, sms: int, at: Buffers, launch: Launch) -> None:
        self.model = model
        self.at = at
        self._launch = launch
        self._plan = lru_cache(maxsize=None)(
            lambda rows, drafts, logits: build_plan(model, sms, rows, drafts, logits=logits)
        )

    def cycle(self, drafts: int, given: Sequence[int] | None = None) -> list[int]:
        """One launch -> the answer's next 1 to 1 + drafts tokens: the accepted drafts and the token behind them.

        given: drafts to verify in place of the MTP head's, any number up to 15; the head makes its own all the same.
        """
        self._run(drafts, given, logits=False)
        accepted: list[int] = self.at["accepted"][: count(self.at, "fold")].tolist()
        return accepted

    def logits(self, drafts: int, given: Sequence[int] | None = None) -> tuple[list[int], Tensor]:
        """One launch -> the drafts that it had, and all logits of its rows [1 + drafts, V], a view of the buffer.

        The host chooses the tokens, and must `settle` them before the next launch. The buffers must have been made
        with logits.
        """
        rows = self._run(drafts, given, logits=True)
        verified: list[int] = self.at["tokens"][1:rows].tolist()
        return verified, self.at["logits"][:rows]

    def _run(self, drafts: int, given: Sequence[int] | None, logits: bool) -> int:
        """-> the rows of the launch."""
        rows = 1 + (drafts if given is None else len(given))
        if given is not None:
            self.at["given"][: len(given)] = torch.tensor(list(given), dtype=torch.int64)
        set_counts(self.at, external=int(given is not None))
        self._launch(self._plan(rows, drafts, logits), self.at)
        return rows
