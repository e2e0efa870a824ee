"""What the engine is asked for and what it answers, free of torch so that every client can import it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["end", "stop", "length", "cancelled", "timeout", "error"]
"""end: the model's own end token; stop: a stop rule; length: max_tokens or the context is full."""

Priority = Literal["completion", "edit", "background"]


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen from logits. The defaults are greedy.

    temperature 0 means greedy; top_k 0, top_p 1 and min_p 0 mean off; penalties as in the OpenAI API,
    repetition_penalty 1 means off. A seed makes a sampled answer repeatable.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None


class StopRule(Protocol):
    """Decides how much of a generated text to keep; one for each generation, whose text only grows."""

    def __call__(self, text: str, /) -> int | None:
        """Called with all text so far, after each token: None to go on, or the length to keep."""
        ...

    def settled(self, text: str, /) -> int:
        """How much of `text` no later answer takes back, so that it can be shown now."""
        ...


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt in tokens, and when to stop.

    ids: the whole prompt. checkpoints: token counts at which the recurrent state is worth keeping (prompt borders);
    the last of them is taken for the cursor. prediction: tokens that the answer is expected to copy in part, such as
    the old text of an edit; the answer is then computed faster, and its text doesn't depend on them. progress: whether
    a long prefill tells how far it is.
    """

    ids: list[int]
    max_tokens: int
    checkpoints: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: StopRule | None = None
    timeout_ms: float | None = None
    priority: Priority = "completion"
    speculate: bool = True
    prediction: tuple[int, ...] = ()
    progress: bool = False


@dataclass(frozen=True)
class Counters:
    """What an answer cost. Tokens are counted, times are in milliseconds, rates in tokens per second.

    shared: the first tokens of the prompt that the cache held, up to the first that differed; those beyond ``reused``
    were computed again, because the recurrent state could only go back to one that was kept. prefilled: all tokens of
    the prompt that were computed, in chunks or in steps. copied: drafts, of those counted in ``drafted``, that were
    tokens of the prediction.
    """

    prompt_tokens: int = 0
    shared: int = 0
    prefilled: int = 0
    reused: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    copied: int = 0
    copied_accepted: int = 0
    cycles: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    prefill_tokens_per_second: float = 0.0
    tokens_per_second: float = 0.0


@dataclass(frozen=True)
class PrefillEvent:
    """How much of a long prompt is computed. done, total: tokens; those that were reused are done."""

    done: int
    total: int


@dataclass(frozen=True)
class TextEvent:
    """Whole characters that can be shown."""

    text: str
    tokens: int


@dataclass(frozen=True)
class FinishedEvent:
    """The last event of every generation. ``detail`` says more for ``error``."""

    reason: FinishReason
    counters: Counters
    detail: str = ""


Event = PrefillEvent | TextEvent | FinishedEvent
