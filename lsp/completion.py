"""The pure core of a completion: a document and a place in it become a request, the answer becomes an outcome.

Knows no editor and no protocol; ``draftline complete`` and the language server use the same functions.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lsp.filters import Filtered, Surroundings, finish_item
from lsp.items import Item
from lsp.languages import language_of
from lsp.settings import Settings
from prompts.budget import BudgetKeeper
from prompts.ledger import Ledger
from prompts.reuse import label_of
from prompts.segments import Segment
from prompts.stops import choose_stop
from prompts.text import Cursor, SourceFile, SourceText
from prompts.window import PrefixWindow
from server.client import EngineError, EngineUnavailable
from server.request import Counters, SamplingParams
from server.wire import (
    CompletionEvent,
    CompletionFinished,
    CompletionProgress,
    CompletionRequest,
    CompletionText,
    Health,
)

ALTERNATIVES = SamplingParams(temperature=0.8, top_p=0.95)
LEAST_MS = 50
"""No alternative is begun with less time left."""

Reading = Callable[[CompletionProgress | None], None]
"""Told how far a long prompt is, and None when it is read or given up."""

ENGINE_GRACE_S = 1.0
"""An engine that keeps silent for so long after a request's own timeout is given up on."""


class Engine(Protocol):
    """What a completion needs of ``server.client.EngineClient``."""

    def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent]: ...

    async def health(self) -> Health: ...


@dataclass(frozen=True)
class Outcome:
    """How one request ended.

    reason: exactly one, of those in ``docs/language-server.md``. text: what to insert at the cursor (LF line ends),
    empty unless shown. replaces: so many characters after the cursor in its line are replaced by it. others: more
    items for the same place. detail: one line for people. cached: from the memory of items, without the engine.
    prefetched: it was made before it was asked for.
    """

    reason: str
    text: str = ""
    replaces: int = 0
    others: tuple[Item, ...] = ()
    detail: str = ""
    cached: bool = False
    prefetched: bool = False
    counters: Counters = field(default_factory=Counters)
    first_difference: int | None = None
    """The first segment of the prompt that the engine didn't hold as it is; difference says which it is."""
    difference: str = ""

    def figures(self) -> dict[str, Any]:
        """What every item and every answer carries. Times in milliseconds, the rest in tokens."""
        c = self.counters
        return {
            "ttft_ms": round(c.ttft_ms, 1),
            "total_ms": round(c.total_ms, 1),
            "prefilled": c.prefilled,
            "reused": c.reused,
            "generated": c.generated,
            "drafted": c.drafted,
            "accepted": c.accepted,
            "tokens_per_second": round(c.tokens_per_second, 1),
            "cached": self.cached,
            "prefetched": self.prefetched,
        }

    @property
    def items(self) -> tuple[Item, ...]:
        """What there is to show, the best first."""
        return (Item(self.text, self.replaces), *self.others) if self.reason == "shown" else ()


BLANK = Outcome("blank", detail="nothing is written in the document yet")
"""For a document that ``is_blank``."""


def is_blank(source: SourceText) -> bool:
    """Whether a document gives the model nothing to go on: it would recite a licence header, as files begin with."""
    return not any(line and not line.isspace() for line in source.lines)


@dataclass(frozen=True)
class Workplace:
    """What surrounds the current file: other files (least recently used first), the repository's name, and what the
    prompts so far looked like."""

    others: Sequence[SourceFile] = ()
    repository: str | None = None
    ledger: Ledger = field(default_factory=Ledger)


def completion_request(
    current: SourceFile,
    cursor: Cursor,
    workplace: Workplace,
    settings: Settings,
    budget: BudgetKeeper,
    window: PrefixWindow | None = None,
) -> CompletionRequest:
    """Build the request for an item at ``cursor``; sources that are switched off leave no trace in it.

    Raises NoPromptBudget.
    """
    segments = workplace.ledger.prompt(
        current,
        cursor,
        workplace.others,
        budget.budget(settings.max_tokens),
        repository=workplace.repository,
        window=window,
        sources=settings.sources,
    ).segments
    around = surroundings(segments)
    return CompletionRequest(
        segments=tuple(segments),
        stop=choose_stop(around.prefix, around.suffix),
        max_tokens=settings.max_tokens,
        timeout_ms=settings.timeout_ms,
        progress=True,
    )


def surroundings(segments: Sequence[Segment], language: str = "") -> Surroundings:
    """The text around the cursor as the prompt has it."""
    return Surroundings(
        prefix="".join(segment.text for segment in segments if segment.role == "prefix"),
        suffix="".join(segment.text for segment in segments if segment.role == "suffix"),
        paths=tuple(segment.path for segment in segments if segment.path),
        language=language,
    )


async def complete(
    engine: Engine,
    request: CompletionRequest,
    budget: BudgetKeeper,
    language: str = "",
    reading: Reading = lambda progress: None,
) -> Outcome:
    """Ask the engine and finish its text. What was measured goes into ``budget``. language: as ``languages.py`` has it.

    Never waits much longer than the request's timeout. Cancelling the task cancels the generation in the engine.
    Raises EngineUnavailable and EngineError.
    """
    around = surroundings(request.segments, language)
    began = time.perf_counter()
    text, finished, told = "", None, False
    limit = None if request.timeout_ms is None else request.timeout_ms / 1000 + ENGINE_GRACE_S
    try:
        async with asyncio.timeout(limit), aclosing(engine.complete(request)) as events:
            async for event in events:
                if isinstance(event, CompletionProgress):
                    told = event.done < event.total
                    reading(event if told else None)
                elif isinstance(event, CompletionText):
                    text += event.text
                else:
                    finished = event
    except TimeoutError:
        total = (time.perf_counter() - began) * 1000
        return Outcome("timeout", detail="the engine did not answer in time", counters=Counters(total_ms=total))
    finally:
        if told:
            reading(None)
    if finished is None:
        raise EngineUnavailable("the engine's answer has no end")
    budget.measured(
        prefilled=finished.counters.prefilled,
        rate=finished.counters.prefill_tokens_per_second,
        texts=[segment.text for segment in request.segments],
        tokens=finished.segment_tokens,
    )
    difference = label_of(request.segments, finished.first_difference)
    return replace(_outcome(text, finished, around), difference=difference)


def _outcome(text: str, finished: CompletionFinished, around: Surroundings) -> Outcome:
    known = Outcome("empty", counters=finished.counters, first_difference=finished.first_difference)
    if finished.reason == "error":
        return replace(known, reason="error", detail=finished.detail)
    if finished.reason == "cancelled":
        # Not by us: who cancels closes the stream, and reads no end.
        return replace(known, reason="error", detail="the engine was stopped before the answer was complete")
    item = finish_item(text, around)
    if not isinstance(item, Filtered):
        return replace(known, reason="shown", text=item.text, replaces=item.replaces)
    if finished.reason == "timeout":
        return replace(known, reason="timeout", detail="no text before the time was up")
    return replace(known, reason=item.reason)


async def complete_at(
    engine: Engine,
    text: str,
    path: str | None,
    cursor: Cursor,
    *,
    workplace: Workplace | None = None,
    settings: Settings | None = None,
) -> Outcome:
    """One completion for a text that is in no editor: what ``draftline complete`` prints.

    text: any line ends. path: as the model is to see it. cursor: line and column from 0, the column in characters;
    clamped to the text. Raises NoPromptBudget, EngineUnavailable and EngineError.
    """
    settings, workplace = settings or Settings(), workplace or Workplace()
    budget = BudgetKeeper()
    health = await engine.health()
    budget.engine(health.context_length, health.prefill_tokens_per_second)
    current = SourceFile(path, SourceText.from_text(text))
    return await complete_within_context(
        engine,
        lambda: completion_request(current, cursor, workplace, settings, budget),
        budget,
        language_of("", path),
    )


async def complete_within_context(
    engine: Engine,
    build: Callable[[], CompletionRequest],
    budget: BudgetKeeper,
    language: str = "",
    reading: Reading = lambda progress: None,
) -> Outcome:
    """``complete``, once more with a shorter prompt when the estimated length was beyond the model's context."""
    try:
        return await complete(engine, build(), budget, language, reading)
    except EngineError as error:
        if error.code != "context_overflow":
            raise
    budget.overflowed()
    return await complete(engine, build(), budget, language, reading)


async def with_alternatives(
    engine: Engine,
    request: CompletionRequest,
    outcome: Outcome,
    budget: BudgetKeeper,
    wanted: int,
    language: str = "",
) -> Outcome:
    """``outcome`` with more items that differ, sampled, up to ``wanted`` in all and as long as the request's time
    lasts.

    A first answer with nothing to show gives way to the first sampled one. An engine that fails ends it: what is there
    is good.
    """
    began, spent_ms = time.perf_counter(), outcome.counters.total_ms
    for seed in range(1, 2 * wanted - 1):
        if outcome.reason not in ("shown", "empty") and not outcome.reason.startswith("filtered:"):
            break
        left = (request.timeout_ms or math.inf) - spent_ms - (time.perf_counter() - began) * 1000
        if len(outcome.items) >= wanted or left < LEAST_MS:
            break
        timeout = None if left == math.inf else left
        again = replace(request, sampling=replace(ALTERNATIVES, seed=seed), timeout_ms=timeout)
        try:
            more = await complete(engine, again, budget, language)
        except (EngineError, EngineUnavailable):
            break
        if outcome.reason != "shown" and more.reason == "shown":
            outcome = more
        else:
            new = tuple(item for item in more.items if item not in outcome.items)
            outcome = replace(outcome, others=outcome.others + new)
    return outcome
