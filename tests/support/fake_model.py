"""A model small enough to know everything about: its next-token distribution can be listed for every history.

It keeps a "recurrent state" (a hash that can't be run backwards), a "conv window" (the last three tokens), a
"KV cache" (all tokens) and an "MTP cache", each of which moves the logits, so that a mistake in rolling back
or restoring any one of them changes the answers. Hiddens carry all of it, and the MTP head knows the model: a
row made from a true hidden, on a right MTP cache, gives the logits the trunk will give, except for one row in
``head_errs_every``. In place of rounding, a state knows which way each token took: its chunk's first, or a step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

PRIME = 10007
CHUNK = 64
STEP = -1
WINDOW = 3


class Sent:
    """What can be sent to the host's memory."""

    far = False

    def send_away(self) -> None:
        assert not self.far, "once is enough"
        self.far = True


@dataclass(eq=False)
class FakeCheckpoint(Sent):
    tokens: tuple[int, ...]
    recurrent: int
    window: tuple[int, ...]
    last_hidden: Tensor
    way: tuple[int, ...]
    nbytes: int = 1000

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(eq=False)
class FakeRows(Sent):
    """Keys and values: the tokens, and in place of bits which way each was computed."""

    start: int
    tokens: tuple[int, ...]
    mtp: tuple[tuple[int, int], ...]
    way: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 8 * len(self.tokens)

    def split(self, count: int) -> tuple[FakeRows, FakeRows]:
        parts = self.tokens, self.mtp, self.way
        first, second = ([part[:count] for part in parts], [part[count:] for part in parts])
        both = FakeRows(self.start, *first), FakeRows(self.start + count, *second)
        for rows in both:
            rows.far = self.far
        return both


@dataclass
class FakeState:
    recurrent: int = 0
    window: tuple[int, ...] = (0,) * WINDOW
    tokens: list[int] = field(default_factory=list)
    mtp: list[tuple[int, int]] = field(default_factory=list)
    last_hidden: Tensor = field(default_factory=lambda: torch.zeros(5, dtype=torch.float64))
    pending: list[FakeState] = field(default_factory=list)
    way: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return 8 * len(self.tokens) + 1000

    @property
    def mtp_length(self) -> int:
        return len(self.mtp)

    def truncate_mtp(self, length: int) -> None:
        assert length <= len(self.mtp)
        del self.mtp[length:]

    def step(self, token: int, way: int = STEP) -> Tensor:
        self.way += (way,)
        self.recurrent = (self.recurrent * 31 + token + 1) % PRIME
        self.window = (*self.window[1:], token)
        self.tokens.append(token)
        self.last_hidden = self.hidden()
        return self.last_hidden

    def hidden(self) -> Tensor:
        values = [self.recurrent, *self.window, fold(self.tokens)]
        return torch.tensor(values, dtype=torch.float64)

    def rollback(self, keep: int) -> None:
        assert 1 <= keep <= len(self.pending), "only rows of the last decode can be kept"
        kept = self.pending[keep - 1]
        self.recurrent, self.window, self.tokens = kept.recurrent, kept.window, list(kept.tokens)
        self.last_hidden, self.way = kept.last_hidden, kept.way
        self.pending = []

    def checkpoint(self, length: int | None = None) -> FakeCheckpoint:
        assert length is not None or not self.pending, "a checkpoint in the middle of a cycle"
        if length is None or length == len(self.tokens):
            return FakeCheckpoint(tuple(self.tokens), self.recurrent, self.window, self.last_hidden, self.way)
        then = next(state for state in self.pending if len(state.tokens) == length)
        return FakeCheckpoint(tuple(then.tokens), then.recurrent, then.window, then.last_hidden, then.way)

    def restore(self, checkpoint: FakeCheckpoint) -> None:
        assert checkpoint.length <= len(self.tokens)
        self.recurrent, self.window = checkpoint.recurrent, checkpoint.window
        self.last_hidden, self.way = checkpoint.last_hidden, checkpoint.way
        del self.tokens[checkpoint.length :]
        del self.mtp[checkpoint.length :]
        self.pending = []

    def rows(self, start: int, end: int) -> FakeRows:
        assert 0 <= start < end <= min(len(self.tokens), len(self.mtp))
        return FakeRows(start, tuple(self.tokens[start:end]), tuple(self.mtp[start:end]), self.way[start:end])

    def adopt(self, checkpoint: FakeCheckpoint, parts: Sequence[FakeRows]) -> None:
        for part in parts:
            assert part.start <= len(self.tokens), "a gap in the rows"
            self.tokens[part.start :], self.mtp[part.start :] = part.tokens, part.mtp
            self.way = self.way[: part.start] + part.way
        assert tuple(self.tokens[: checkpoint.length]) == checkpoint.tokens, "rows of other tokens"
        assert self.way[: checkpoint.length] == checkpoint.way, "rows that were computed in another way"
        self.restore(checkpoint)

    def copy(self) -> FakeState:
        return copy.deepcopy(self)


def fold(tokens: list[int]) -> int:
    value = 7
    for token in tokens:
        value = (value * 17 + token) % PRIME
    return value


@dataclass(frozen=True)
class FakeConfig:
    vocab: int
    mtp: bool = True
    context_length: int = 4096


class FakeModel:
    """``contexts`` distributions over ``vocabulary`` tokens, chosen by everything the state holds."""

    def __init__(self, vocabulary: int = 8, contexts: int = 101, scale: float = 2.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(contexts, vocabulary, generator=generator, dtype=torch.float64) * scale
        self.config = FakeConfig(vocabulary)
        self.head_errs_every: int | None = None
        self.rows_decoded: list[int] = []
        self.rows_prefilled: list[int] = []

    max_rows = 16

    def new_state(self) -> FakeState:
        return FakeState()

    def prefill(self, ids: list[int], state: FakeState) -> Tensor:
        assert len(ids) > 0
        assert state.mtp_length == len(state.tokens), "the MTP cache has a gap"
        self.rows_prefilled.append(len(ids))
        rows, start = [], len(state.tokens)
        for at, token in enumerate(ids, start):
            self.mtp_fill([token], state.last_hidden[None], state)
            rows.append(state.step(token, max(start, at // CHUNK * CHUNK)))
        return torch.stack(rows)

    def decode(self, ids: list[int], state: FakeState) -> Tensor:
        assert 1 <= len(ids) <= 16
        self.rows_decoded.append(len(ids))
        rows, pending = [], []
        for token in ids:
            rows.append(state.step(token))
            pending.append(replace(state, tokens=list(state.tokens), mtp=[], pending=[]))
        state.pending = pending
        return torch.stack(rows)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.stack([self.table[int(row.sum()) % len(self.table)] for row in hidden])

    def mtp_fill(self, ids: list[int], previous_hidden: Tensor, state: FakeState) -> None:
        assert len(ids) == len(previous_hidden)
        for token, row in zip(ids, previous_hidden, strict=True):
            state.mtp.append((token, int(row.sum())))

    def mtp_rows(self, ids: list[int], previous_hidden: Tensor, state: FakeState) -> Tensor:
        rows = []
        for token, row in zip(ids, previous_hidden, strict=True):
            self.mtp_fill([token], row[None], state)
            recurrent, *window = (int(x) for x in row[:-1])
            # A stale, missing or empty row of the MTP cache spoils the drafts after it.
            folded = fold([t if h or i == 0 else 0 for i, (t, h) in enumerate(state.mtp)])
            values = [(recurrent * 31 + token + 1) % PRIME, *window[1:], token, folded]
            rows.append(torch.tensor(values, dtype=torch.float64))
        return torch.stack(rows)

    def draft_logits(self, rows: Tensor) -> Tensor:
        """The draft head counts the vocabulary backwards."""
        logits = self.logits(rows).flip(1)
        if self.head_errs_every:
            errs = [int(row.sum()) % self.head_errs_every == 0 for row in rows]
            logits = torch.where(torch.tensor(errs)[:, None], logits.roll(1, dims=1), logits)
        return logits

    def draft_token(self, row: int) -> int:
        return self.config.vocab - 1 - row
