"""The prefix cache: sequences kept as they were left, each with earlier states of it.

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

from server.cache.borders import kept_states, prefill_cuts, steps_begin

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import Checkpoint, SequenceState

WORTH_COPYING = 256
"""A request that differs from a kept sequence so many tokens before its end continues a copy of it."""
LONG_ANSWER = 128
"""A prompt that goes on after an earlier answer would have it in chunks. Where more tokens than this would be computed
again, they are taken as the answer's steps left them: the one case in which what was cached shows, in the rounding."""
MIXED = -1
"""In place of a number of tokens in chunks: chunks follow steps, which no prompt by itself would have."""


@dataclass(frozen=True)
class KeptState:
    """A checkpoint. chunked: how many of its tokens, from the first on, were computed in chunks; MIXED if not so."""

    checkpoint: Checkpoint
    chunked: int

    @property
    def length(self) -> int:
        return self.checkpoint.length

    @property
    def nbytes(self) -> int:
        return self.checkpoint.nbytes


@dataclass
class CachedSequence:
    """A state that holds verified tokens only, and earlier ones of it in ascending order of length.

    chunked: as in ``KeptState``, of the state as it is; what follows these tokens was computed in steps.
    """

    state: SequenceState
    states: list[KeptState] = field(default_factory=list)
    chunked: int = 0
    used: int = 0

    def reusable(self, ids: Sequence[int], begin: int) -> int:
        """How many of the first tokens of ``ids``, whose steps begin after ``begin``, needn't be computed.

        What is held of them was computed as they would be; only a long answer is taken as it is.
        """
        shared, held = common_length(self.state.tokens, ids), len(self.state.tokens)
        fitting = (s.length for s in self.states if s.length <= shared and _fits(s.chunked, s.length, begin))
        best = max(fitting, default=0)
        whole = shared == held and (_fits(self.chunked, held, begin) or held - best > LONG_ANSWER)
        return held if whole else best

    def cut(self, length: int) -> None:
        """Go back to the first ``length`` tokens, a value that ``reusable`` gave."""
        if length < len(self.state.tokens):
            self.states = [s for s in self.states if s.length <= length]
            self.state.restore(self.states[-1].checkpoint)
            self.chunked = self.states[-1].chunked

    def keep(self, length: int) -> None:
        """Keep the state after ``length`` tokens: all, or some that the last decode passed."""
        self.states.append(KeptState(self.state.checkpoint(length), min(self.chunked, length)))

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + sum(s.nbytes for s in self.states)


def _fits(chunked: int, length: int, begin: int) -> bool:
    """Whether ``length`` tokens, ``chunked`` of them in chunks, took the way of a prompt whose steps begin there."""
    return chunked == min(length, begin)


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

    def take(self, ids: Sequence[int], checkpoints: Iterable[int] = ()) -> tuple[CachedSequence, int]:
        """The sequence to continue for the prompt ``ids``, and how many of its tokens it already holds.

        The sequence's state holds exactly these tokens. It belongs to the caller until ``give_back``. checkpoints: as
        they are given to ``prefill_step``.
        """
        self._clock += 1
        begin = steps_begin(len(ids), checkpoints)
        best = max(self._kept, key=lambda kept: (kept.reusable(ids, begin), kept.used), default=None)
        reused = best.reusable(ids, begin) if best is not None else 0
        if best is None or reused == 0:
            return CachedSequence(self._new_state()), 0
        if len(best.state.tokens) - common_length(best.state.tokens, ids) > WORTH_COPYING:
            best.used = self._clock
            best = CachedSequence(deepcopy(best.state), list(best.states), best.chunked)
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
        """Bytes of all that is kept; a state that two sequences share counts once."""
        shared = {id(k): k.nbytes for sequence in self._kept for k in sequence.states}
        return sum(kept.state.nbytes for kept in self._kept) + sum(shared.values())

    def __len__(self) -> int:
        return len(self._kept)

    def _drop_least(self) -> None:
        """Drop the state or the sequence that saves the least prefill per byte.

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
            for index, state in enumerate(kept.states):
                worth = (state.length - before) / (age * max(1, state.nbytes))
                if worth < least:
                    least, victim = worth, (kept, index)
                before = state.length
        kept, place = victim
        if place is None:
            self._kept.remove(kept)
        else:
            del kept.states[place]


def prefill_step(model: HybridModel, sequence: CachedSequence, ids: Sequence[int], checkpoints: Iterable[int]) -> int:
    """Compute the prompt's tokens up to the next cut, or the next few in steps; keep the state where it is wanted.

    Returns how many tokens were computed; 0 when the state holds all of ``ids``.
    """
    have, asked = len(sequence.state.tokens), tuple(checkpoints)
    if have >= len(ids):
        return 0
    begin = steps_begin(len(ids), asked)
    if not _fits(sequence.chunked, have, begin):
        sequence.chunked = MIXED
    if have < begin:
        border = next(cut for cut in prefill_cuts(len(ids), asked) if cut > have)
        model.prefill(list(ids[have:border]), sequence.state)
        if sequence.chunked != MIXED:
            sequence.chunked = border
    else:
        border = min(have + model.max_rows, len(ids))
        _decode(model, sequence.state, ids[have:border])
    for length in sorted(kept_states(len(ids), asked)):
        if have < length <= border:
            sequence.keep(length)
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
