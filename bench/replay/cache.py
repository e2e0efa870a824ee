"""The engine's prefix cache with a model that computes nothing: which tokens a prompt would prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from server.cache.prefix import PrefixCache, prefill_step

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import SequenceState

PROMPTS = 3
"""As many of the longest prompts fit into the cache."""
STATE_TOKENS = 40
"""What a kept recurrent state weighs, in tokens of keys and values."""
ANSWER = [-1] * 12
"""What was generated after a prompt is in the cache, and in no other prompt."""


TOKEN_BYTES = 1024
"""What the keys and values of a token weigh here; beside them a token's own number is nothing."""


@dataclass
class _Checkpoint:
    tokens: tuple[int, ...]
    nbytes: int = STATE_TOKENS * TOKEN_BYTES
    far: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass
class _Rows:
    start: int
    count: int
    far: bool = False

    @property
    def nbytes(self) -> int:
        return self.count * TOKEN_BYTES

    def split(self, count: int) -> tuple[_Rows, _Rows]:
        return _Rows(self.start, count), _Rows(self.start + count, self.count - count)


@dataclass
class _State:
    tokens: list[int] = field(default_factory=list)
    last_hidden: None = None

    @property
    def nbytes(self) -> int:
        return len(self.tokens) * TOKEN_BYTES

    def rows(self, start: int, end: int) -> _Rows:
        return _Rows(start, end - start)

    def checkpoint(self, length: int | None = None) -> _Checkpoint:
        return _Checkpoint(tuple(self.tokens[:length]))

    def adopt(self, checkpoint: _Checkpoint, parts: Sequence[_Rows]) -> None:
        self.tokens = list(checkpoint.tokens)


class _Config:
    mtp = False


class _Model:
    max_rows = 16
    config = _Config()

    def prefill(self, ids: Sequence[int], state: _State) -> None:
        state.tokens += ids

    decode = prefill


class CountingCache:
    def __init__(self, longest: int) -> None:
        """longest: tokens of a prompt, at most."""
        self._cache = PrefixCache(lambda: cast("SequenceState", _State()), PROMPTS * 2 * longest * TOKEN_BYTES)

    def ask(self, ids: Sequence[int], checkpoints: Sequence[int]) -> int:
        """How many tokens of the prompt are reused; the cache holds it and an answer afterwards."""
        ids = list(ids)
        sequence, reused = self._cache.take(ids, checkpoints)
        while prefill_step(cast("HybridModel", _Model()), sequence, ids, checkpoints):
            pass
        sequence.state.tokens += ANSWER
        self._cache.give_back(sequence)
        return reused
