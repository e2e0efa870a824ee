"""One accepted request from the engine's acceptance to its end: events out, cancellation in, one line in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import CapacityLimiter, to_thread

from prompts.chat_fill import chat_fill
from prompts.fim import BadSegments, NoFimTokens, PromptTokens, fim_tokens, plain_tokens
from prompts.segments import Segment
from prompts.text import byte_length
from server.api.errors import ApiError, bad_request
from server.api.host import EngineHost
from server.model.chat_template import ChatTemplateError
from server.request import (
    Counters,
    Event,
    FinishedEvent,
    GenerationRequest,
    Priority,
    SamplingParams,
    StopRule,
)
from server.serving.scheduler import EngineBusy
from server.wire import Route

if TYPE_CHECKING:
    from server.engine import Engine
    from server.model.chat_template import ChatTemplate
    from server.model.tokenizer import Tokenizer
    from server.serving.generation import Generation

log = logging.getLogger("draftline.engine")

_tokenising = CapacityLimiter(2)
"""Threads at most: more would take the model's processor time, and each keeps memory of its own."""


@dataclass(frozen=True)
class Asked:
    """What both completion endpoints ask of the engine, checked but not yet in tokens."""

    route: Route
    segments: tuple[Segment, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: StopRule | None = None
    timeout_ms: float | None = None
    priority: Priority = "completion"
    speculate: bool = True
    prediction: str = ""
    progress: bool = False


def encode_prompt(asked: Asked, tokenizer: Tokenizer, chat: ChatTemplate | None = None) -> PromptTokens:
    """The segments in tokens, each tokenised by itself but for a chat's. A model without fill-in-the-middle markers
    fills in by chat. Raises ApiError for segments that the route has no place for, and where a model can't chat."""
    if asked.route == "chat":
        return _encode_chat(asked.segments, tokenizer, chat)
    try:
        return (fim_tokens if asked.route == "fim" else plain_tokens)(asked.segments, tokenizer)
    except NoFimTokens as error:
        if chat is None:
            raise bad_request(str(error), "route", "no_fim_tokens") from error
        fill = chat_fill(asked.segments)
        ids = _rendered({"system": fill.system, "user": fill.user}, tokenizer, chat)
        return _as_one(ids + tokenizer.encode(fill.begun), len(asked.segments))
    except BadSegments as error:
        raise bad_request(str(error), "segments", "bad_segments") from error


def _encode_chat(segments: tuple[Segment, ...], tokenizer: Tokenizer, chat: ChatTemplate | None) -> PromptTokens:
    if chat is None:
        raise bad_request("the model has no chat template: take a chat or instruct model", "route", "no_chat")
    for number, segment in enumerate(segments):
        if segment.role not in ("system", "user"):
            problem = f"segments[{number}]: the role {segment.role!r} has no place in a chat"
            raise bad_request(problem, "segments", "bad_segments")
    texts = {role: "".join(s.text for s in segments if s.role == role) for role in ("system", "user")}
    return _as_one(_rendered(texts, tokenizer, chat), len(segments))


def _rendered(texts: dict[str, str], tokenizer: Tokenizer, chat: ChatTemplate) -> list[int]:
    """texts: of messages, by their roles; empty ones are left out. Raises ApiError."""
    messages = [{"role": role, "content": text} for role, text in texts.items() if text]
    try:
        return tokenizer.encode_chat(chat.render(messages, enable_thinking=False))
    except ChatTemplateError as error:
        raise bad_request(str(error), "segments", "bad_segments") from error


def _as_one(ids: list[int], segments: int) -> PromptTokens:
    """Where one segment ends isn't known: all of it counts as the last one."""
    rest = segments - 1
    return PromptTokens(ids, (), (*[0] * rest, 0), (*[0] * rest, len(ids)))


def first_difference(prompt: PromptTokens, shared: int) -> int | None:
    """Index of the segment that holds the first token after the ``shared`` ones; None when there is none.

    shared: how many of the prompt's first tokens the engine held (``Counters.shared``).
    """
    if shared >= len(prompt.ids):
        return None
    places = zip(prompt.starts, prompt.lengths, strict=True)
    return next(i for i, (start, length) in enumerate(places) if start <= shared < start + length)


class Running:
    """A request the engine has accepted. Its events wait in a queue: a slow or absent reader holds up nothing."""

    def __init__(self, host: EngineHost, generation: Generation, asked: Asked, prompt: PromptTokens) -> None:
        self.asked = asked
        self.prompt = prompt
        self._host = host
        self._generation = generation
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        host.begin(self)
        self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        finished: FinishedEvent | None = None
        detail = "the engine ended the request without a reason"
        try:
            async for event in self._generation:
                if isinstance(event, FinishedEvent):
                    finished = event
                else:
                    self._events.put_nowait(event)
        except Exception as error:
            log.exception("a generation failed")
            detail = f"{type(error).__name__}: {error}"
        finally:
            if finished is None:
                finished = FinishedEvent("error", Counters(), detail)
            self._events.put_nowait(finished)
            log_finished(self.asked.route, finished)
            self._host.end(self)

    async def events(self) -> AsyncGenerator[Event]:
        """Every event once; the last is FinishedEvent."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, FinishedEvent):
                return

    def cancel(self) -> None:
        """End the generation within one cycle. Nothing happens when it has ended."""
        self._generation.cancel()


def log_finished(route: str, finished: FinishedEvent) -> None:
    """The one line a request leaves in the log: its reason and its counters, never a word of its text."""
    c = finished.counters
    log.info(
        "completion route=%s reason=%s prompt=%d reused=%d prefilled=%d generated=%d drafted=%d accepted=%d "
        "cycles=%d ttft_ms=%.1f total_ms=%.1f tokens_per_second=%.1f%s",
        route,
        finished.reason,
        c.prompt_tokens,
        c.reused,
        c.prefilled,
        c.generated,
        c.drafted,
        c.accepted,
        c.cycles,
        c.ttft_ms,
        c.total_ms,
        c.tokens_per_second,
        f" detail={finished.detail!r}" if finished.detail else "",
    )


async def start(host: EngineHost, asked: Asked) -> Running:
    """Give a request to the engine. Raises ApiError: 503 while loading, 429 when busy, 400 when it can't fit."""
    engine = host.engine()
    _refuse_hopeless(asked, engine)
    # A long prompt takes tens of milliseconds to tokenise: other requests and /health go on meanwhile.
    prompt = await to_thread.run_sync(encode_prompt, asked, engine.tokenizer, engine.chat, limiter=_tokenising)
    prediction = await to_thread.run_sync(engine.tokenizer.encode, asked.prediction, limiter=_tokenising)
    if not prompt.ids:
        raise bad_request("the prompt is empty", "prompt", "empty_prompt")
    generation = _submit(host, asked, prompt, tuple(prediction))
    return Running(host, generation, asked, prompt)


def _refuse_hopeless(asked: Asked, engine: Engine) -> None:
    """A text that can't fit however it is tokenised isn't: megabytes of it would take a minute and much memory."""
    for what, texts in (("prompt", [segment.text for segment in asked.segments]), ("prediction", [asked.prediction])):
        least = sum(map(byte_length, texts)) // engine.tokenizer.longest
        if least >= engine.context_length:
            raise bad_request(
                f"the {what} has at least {least} tokens, but the context holds {engine.context_length}",
                what,
                "context_overflow",
                have=least,
                limit=engine.context_length,
            )


def _submit(host: EngineHost, asked: Asked, prompt: PromptTokens, prediction: tuple[int, ...]) -> Generation:
    # The one thing here that imports torch; an engine that exists has done so already.
    from server.engine import ContextOverflow

    engine = host.engine()
    try:
        return engine.submit(
            GenerationRequest(
                ids=prompt.ids,
                max_tokens=asked.max_tokens,
                checkpoints=prompt.checkpoints,
                sampling=asked.sampling,
                stop=asked.stop,
                timeout_ms=asked.timeout_ms,
                priority=asked.priority,
                speculate=asked.speculate,
                prediction=prediction,
                progress=asked.progress,
            )
        )
    except ContextOverflow as error:
        raise bad_request(str(error), "prompt", "context_overflow", have=error.have, limit=error.limit) from error
    except ValueError as error:
        raise bad_request(str(error)) from error
    except EngineBusy as error:
        raise ApiError(429, "busy", str(error)) from error
    except RuntimeError as error:
        # Its worker has ended, and nothing brings it back: make room for a new engine.
        log.error("the engine takes no requests any more: %s", error)
        host.stop(when_idle=False)
        raise ApiError(
            503, "stopping", "the engine failed and is stopping; connect again to start a new one"
        ) from error
