"""What travels between a client and the engine process: the native request and its answer, as JSON.

Free of torch and of HTTP, so that the language server, the command line and the engine share one definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from prompts.segments import Segment
from prompts.stops import StopName
from server.request import Counters, FinishReason, Priority, SamplingParams

Route = Literal["fim", "plain", "chat"]
"""fim: the text between ``prefix`` and ``suffix``; plain: what follows the ``text`` segments; chat: the answer to one
user's message, by the model's own chat template and without thinking aloud."""

ENGINE_PID_HEADER = "x-draftline-pid"
"""Response header by which a client notices that another engine has taken the place of the one it knew."""


@dataclass(frozen=True)
class CompletionRequest:
    """One completion asked of the engine process (``POST /draftline/v1/complete``).

    segments: in prompt order, the part at the cursor last. stop: the rule that ends the generation inside the engine.
    timeout_ms: counted from the moment the engine accepts the request. speculate False switches drafting off, which
    never changes greedy text. prediction: text that the answer is expected to hold in part, such as the old text of an
    edit: drafts are copied from it, and the answer's text doesn't depend on it. progress: whether a long prompt's
    CompletionProgress is wanted.
    """

    segments: tuple[Segment, ...]
    route: Route = "fim"
    stop: StopName = "none"
    max_tokens: int = 128
    timeout_ms: float | None = None
    priority: Priority = "completion"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculate: bool = True
    prediction: str = ""
    progress: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CompletionProgress:
    """How much of a prompt is computed, which takes long: at most four times a second, and at the end once more.

    done, total: tokens of the prompt; those that the engine held before are done.
    """

    done: int
    total: int

    def to_json(self) -> dict[str, Any]:
        return {"prefill": asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CompletionProgress:
        return cls(done=value["done"], total=value["total"])


@dataclass(frozen=True)
class CompletionText:
    """A piece of the answer: whole characters, to be appended to what came before."""

    text: str


@dataclass(frozen=True)
class CompletionFinished:
    """The last event of every answer.

    first_difference: index of the segment with the first token of the prompt that the engine did not hold at its place,
    None when it held them all. Where tokens before it were computed again, a checkpoint was missing.
    segment_tokens: how many prompt tokens each segment became (the markers before it included).
    """

    reason: FinishReason
    counters: Counters
    detail: str = ""
    first_difference: int | None = None
    segment_tokens: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"finished": {**asdict(self), "segment_tokens": list(self.segment_tokens)}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CompletionFinished:
        known = {f.name for f in fields(Counters)}
        counters = Counters(**{k: v for k, v in value.get("counters", {}).items() if k in known})
        return cls(
            reason=value["reason"],
            counters=counters,
            detail=value.get("detail", ""),
            first_difference=value.get("first_difference"),
            segment_tokens=tuple(value.get("segment_tokens", ())),
        )


CompletionEvent = CompletionProgress | CompletionText | CompletionFinished


@dataclass(frozen=True)
class Health:
    """What ``GET /health`` says about an engine process, without touching its model.

    status: ``loading``, ``ready`` or ``stopping`` (finishes what runs, takes nothing new). model: the resolved path
    of the model file; model_id: its name in the API; model_stamp: size and modification time of the file that was
    loaded. context_length: tokens. prefill_tokens_per_second: measured, 0 before the first measurement. active:
    requests running or waiting. clients: connections on the user's socket, the one that asks included. executor: what
    computes and why, one line; empty while the engine loads. chat: whether the model has a chat template.
    """

    status: Literal["loading", "ready", "stopping"]
    version: str
    pid: int
    model: str
    model_id: str
    model_stamp: str
    active: int = 0
    clients: int = 0
    context_length: int = 0
    prefill_tokens_per_second: float = 0.0
    uptime_s: float = 0.0
    executor: str = ""
    chat: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Health:
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in value.items() if k in known})
