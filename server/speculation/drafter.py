"""Drafting with the model's own MTP head: a chain of greedy drafts, and a cache made from true hiddens alone.

The MTP row at position p belongs to token x_p and reads the trunk's hidden of token p - 1. Prefill fills
these rows for the whole prompt. Afterwards they come in two ways: the row of the last sampled token starts
each chain of drafts, and the rows of accepted drafts are made again one cycle later, in the same pass, when
their true hiddens are known (*catch-up*). Rows of drafted tokens read hiddens of the head itself and never
outlive their chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import SequenceState

FILL_AT = 16
"""So many rows behind, the head's cache is filled at once instead of with the next drafts."""


@dataclass(frozen=True)
class Draft:
    """Drafted tokens and how likely the drafter thought each (None: it can't say)."""

    tokens: list[int] = field(default_factory=list)
    confidences: list[float | None] = field(default_factory=list)


class Drafter(Protocol):
    """Proposes what may follow the last sampled token, and is told what was kept of it."""

    def propose(self, token: int, limit: int, another: Callable[[Sequence[float | None]], bool]) -> Draft:
        """1 to ``limit`` drafts after ``token``; each further one only if ``another`` agrees."""

    def settle(self, kept: Sequence[int], before: Tensor, hidden: Tensor) -> None:
        """The trunk kept these tokens. ``hidden`` [T, E] is theirs, ``before`` [E] of the one before."""

    def finish(self) -> None:
        """The answer is over: leave the state ready to be kept and continued."""


class MtpDrafter:
    """Drafts for one sequence with the model's MTP head."""

    def __init__(self, model: HybridModel, state: SequenceState) -> None:
        self._model = model
        self._state = state
        self._behind: list[int] = []
        self._hidden_behind: list[Tensor] = []

    def propose(self, token: int, limit: int, another: Callable[[Sequence[float | None]], bool]) -> Draft:
        ids = [*self._behind, token]
        previous = torch.stack([*self._hidden_behind, self._state.last_hidden])
        self._behind, self._hidden_behind = [], []
        row = self._model.mtp_rows(ids, previous, self._state)[-1:]
        true_rows = self._state.mtp_length
        draft = Draft()
        while True:
            confidence, best = torch.softmax(self._model.draft_logits(row)[0].float(), dim=0).max(dim=0)
            draft.tokens.append(self._model.draft_token(int(best)))
            draft.confidences.append(float(confidence))
            if len(draft.tokens) >= limit or not another(draft.confidences):
                break
            row = self._model.mtp_rows(draft.tokens[-1:], row, self._state)
        self._state.truncate_mtp(true_rows)
        return draft

    def settle(self, kept: Sequence[int], before: Tensor, hidden: Tensor) -> None:
        have = self._state.mtp_length + len(self._behind)
        first = len(self._state.tokens) - len(kept)
        previous = [before, *hidden[: len(kept) - 1]]
        for position, (token, row) in enumerate(zip(kept, previous, strict=True), start=first):
            if position >= have:
                self._behind.append(token)
                self._hidden_behind.append(row)
        if len(self._behind) >= FILL_AT:
            self.finish()

    def finish(self) -> None:
        if self._behind:
            self._model.mtp_fill(self._behind, torch.stack(self._hidden_behind), self._state)
            self._behind, self._hidden_behind = [], []
