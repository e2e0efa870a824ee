"""The prefix cache: sequences kept as they were left, each with checkpoints of its recurrent state.

A kept sequence owns its KV cache, and reuse takes the sequence over: nothing is copied while a document is
typed in. Only where a request would throw away a long piece of another prompt, the sequence is copied first.
What can be reused is decided by comparing tokens, never by a name or a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from server.cache.borders import checkpoint_borders, prefill_borders

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import Checkpoint, SequenceState

WORTH_COPYING = 256
"""A request that differs from a kept sequence so many tokens before its end continues a copy of it."""
SHORT = 8
"""So few tokens are decoded, not prefilled: a chunk costs as much with one token as with all it can hold."""


@dataclass
class CachedSequence:
    """A state that holds verified tokens only, and checkpoints of it in ascending order of length."""

    state: SequenceState
    checkpoints: list[Checkpoint] = field(default_factory=list)
    used: int = 0

    def reusable(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of ``ids`` needn't be computed: up to a checkpoint, or all that is held."""
        shared = common_length(self.state.tokens, ids)
        if shared == len(self.state.tokens):
            return shared
        return max((c.length for c in self.checkpoints if c.length <= shared), default=0)

    def cut(self, length: int) -> None:
        """Go back to the first ``length`` tokens, a value that ``reusable`` gave."""
        if length < len(self.state.tokens):
            self.checkpoints = [c for c in self.checkpoints if c.length <= length]
            self.state.restore(self.checkpoints[-1])

    def keep_checkpoint(self, length: int) -> None:
        """Keep the recurrent state after ``length`` tokens: all, or some that the last decode passed."""
        self.checkpoints.append(self.state.checkpoint(length))

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + sum(c.nbytes for c in self.checkpoints)


class PrefixCache:
    """Kept sequences of one model, within a budget of bytes. Used by one thread."""

    def __init__(self, new_state: Callable[[], SequenceState], budget: int) -> None:
        """budget: bytes that all kept sequences and their checkpoints may take together."""
        self._new_state = new_state
        self._budget = budget
        self._kept: list[CachedSequence] = []
        self._clock = 0

    def shared(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of ``ids`` some kept sequence begins with: at least those that can be reused."""
        return max((common_length(kept.state.tokens, ids) for kept in self._kept), default=0)

    def take(self, ids: Sequence[int]) -> tuple[CachedSequence, int]:
        """The sequence to continue for the prompt ``ids``, and how many of its tokens it already holds.

        The sequence's state holds exactly these tokens. It belongs to the caller until ``give_back``.
        """
        self._clock += 1
        best = max(self._kept, key=lambda kept: (kept.reusable(ids), kept.used), default=None)
        reused = best.reusable(ids) if best is not None else 0
        if best is None or reused == 0:
            return CachedSequence(self._new_state()), 0
        if len(best.state.tokens) - common_length(best.state.tokens, ids) > WORTH_COPYING:
            best.used = self._clock
            best = CachedSequence(deepcopy(best.state), list(best.checkpoints))
        else:
            self._kept.remove(best)
        best.cut(reused)
        return best, reused

    def give_back(self, sequence: CachedSequence) -> None:
        """Keep a sequence for later, then drop what is worth least until the budget holds."""
        sequence.used = self._clock
        if sequence.state.tokens:
            self._kept.append(sequence)
        while self._kept and self.nbytes > self._budget:
            self._drop_least()

    def clear(self) -> None:
        self._kept.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept; a checkpoint that two sequences share counts once."""
        shared = {id(c): c.nbytes for kept in self._kept for c in kept.checkpoints}
        return sum(kept.state.nbytes for kept in self._kept) + sum(shared.values())

    def __len__(self) -> int:
        return len(self._kept)

    def _drop_least(self) -> None:
        """Drop the checkpoint or the sequence that saves the least prefill per byte.

        The sequence used last counts full, the one before it half, then a third: however long someone types in one
        document, another one doesn't lose more than its turn.
        """
        least = float("inf")
        victim: tuple[CachedSequence, int | None] = (self._kept[0], None)
        newest_first = sorted(self._kept, key=lambda kept: kept.used, reverse=True)
        for age, kept in enumerate(newest_first, start=1):
            worth = len(kept.state.tokens) / (age * max(1, kept.nbytes))
            if worth < least:
                least, victim = worth, (kept, None)
            before = 0
            for index, checkpoint in enumerate(kept.checkpoints):
                worth = (checkpoint.length - before) / (age * max(1, checkpoint.nbytes))
                if worth < least:
                    least, victim = worth, (kept, index)
                before = checkpoint.length
        kept, place = victim
        if place is None:
            self._kept.remove(kept)
        else:
            del kept.checkpoints[place]


def prefill_step(model: HybridModel, sequence: CachedSequence, ids: Sequence[int], checkpoints: Iterable[int]) -> int:
    """Compute the prompt's tokens up to the next border, or the last few to the end; keep the state where asked.

    Returns how many tokens were computed; 0 when the state holds all of ``ids``.
    """
    have = len(sequence.state.tokens)
    asked = tuple(checkpoints)
    border = next((b for b in prefill_borders(len(ids), asked) if b > have), None)
    if border is None:
        return 0
    if len(ids) - have <= SHORT:
        border = len(ids)
        _decode(model, sequence.state, ids[have:])
    else:
        model.prefill(list(ids[have:border]), sequence.state)
    for length in sorted(checkpoint_borders(len(ids), asked)):
        if have < length <= border:
            sequence.keep_checkpoint(length)
    return border - have


def _decode(model: HybridModel, state: SequenceState, ids: Sequence[int]) -> None:
    """What a prefill of ``ids`` does, row by row."""
    before = state.last_hidden
    hidden = model.decode(ids, state)
    if model.config.mtp:
        model.mtp_fill(ids, torch.cat((before[None], hidden[:-1])), state)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])
