"""How many tokens a prompt may have: what the model's context holds, and what the machine prefills in two seconds.

The client has no tokenizer, so tokens are estimated from UTF-8 bytes by a ratio that every answer corrects. A budget
that followed each measurement would move the edges of the prompt, and nothing of it could be reused: so it stays as it
is until the measurements say that it is wrong by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLD_SECONDS = 2.0
"""A request nothing of which is cached should answer within this time."""
LEAST_TOKENS = 256
"""A slow machine still gets that much context, if the model has it."""
MARKER_TOKENS = 32
"""Kept for the markers around the segments."""
TOO_LONG, TOO_SHORT = 0.6, 1.7
"""Measured over present length: outside of these the prompt is laid out anew."""

_FIRST_RATE = 700.0  # tokens/s, before anything was measured
_FIRST_BYTES_PER_TOKEN = 3.5
_ENOUGH_PREFILLED = 64  # fewer tokens measure the overhead, not the rate
_ENOUGH_TOKENS = 64
_SAFETY = 0.95  # of the context: the ratio is an estimate


class NoPromptBudget(ValueError):  # noqa: N818
    """There are no tokens to build a prompt with."""

    def __init__(self, tokens: int) -> None:
        super().__init__(
            f"the prompt's budget is {tokens} tokens: the model's context is too short for the tokens "
            "reserved for the answer; take a model with a longer context, or set fewer (max_tokens) in the editor"
        )


@dataclass(frozen=True)
class Budget:
    """tokens: what the whole prompt may have. bytes_per_token: of UTF-8 text, measured or assumed."""

    tokens: int
    bytes_per_token: float = 3.0

    @property
    def bytes(self) -> int:
        return int(self.tokens * self.bytes_per_token)


class BudgetKeeper:
    """The budget of one engine's prompts, corrected by what the engine measured."""

    def __init__(self) -> None:
        self._context_length = 0
        self._rate = 0.0
        self._bytes_per_token = _FIRST_BYTES_PER_TOKEN
        self._settled: tuple[int, Budget] | None = None  # for so many tokens of the answer

    @property
    def context_length(self) -> int:
        """Tokens that the model's context holds; 0 as long as no engine has said so."""
        return self._context_length

    def engine(self, context_length: int, prefill_rate: float) -> None:
        """Note what an engine says about itself. prefill_rate: tokens per second, 0 when it doesn't know yet."""
        self._context_length = context_length
        self._rate = prefill_rate
        self._settled = None

    def measured(self, *, prefilled: int, rate: float, texts: Sequence[str], tokens: Sequence[int]) -> None:
        """Note one answer: tokens prefilled at ``rate`` tokens/s, and what each segment's text became in tokens."""
        if prefilled >= _ENOUGH_PREFILLED and rate > 0:
            self._rate = rate if not self._rate else 0.7 * self._rate + 0.3 * rate
        if sum(tokens) >= _ENOUGH_TOKENS and len(texts) == len(tokens):
            ratio = sum(len(text.encode()) for text in texts) / sum(tokens)
            self._bytes_per_token = 0.5 * self._bytes_per_token + 0.5 * ratio

    def overflowed(self) -> None:
        """Note that a prompt was longer than the model's context: the text has far fewer bytes a token."""
        self._bytes_per_token *= 0.5
        self._settled = None

    def room(self, max_tokens: int, seconds: float, least: int = 0) -> Budget:
        """For one request that may generate ``max_tokens`` and may prefill for so long, or so many tokens; where the
        context doesn't hold it, it may be zero or less."""
        tokens = max((self._rate or _FIRST_RATE) * seconds, least)
        if self._context_length:
            tokens = min(tokens, self._context_length * _SAFETY - max_tokens - MARKER_TOKENS)
        return Budget(int(tokens), self._bytes_per_token)

    def budget(self, max_tokens: int) -> Budget:
        """For a request that may generate ``max_tokens``. It may be zero or less: building a prompt then fails."""
        budget = self.room(max_tokens, COLD_SECONDS, LEAST_TOKENS)
        if self._settled is not None and self._settled[0] == max_tokens:
            settled = self._settled[1]
            if settled.bytes > 0 and TOO_LONG < budget.bytes / settled.bytes < TOO_SHORT:
                return settled
        self._settled = max_tokens, budget
        return budget
