"""From a position in an open document to an outcome: snapshot, memory of items, lane, engine.

Every request ends here with exactly one reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from lsp.ahead import PAUSE_S, Accepted, request_after
from lsp.completion import (
    BLANK,
    Outcome,
    Reading,
    complete,
    complete_within_context,
    completion_request,
    is_blank,
    surroundings,
    with_alternatives,
)
from lsp.debounce import Debounce
from lsp.documents import Document, DocumentStore, Snapshot
from lsp.engine import EngineLink
from lsp.idle import IdleWork
from lsp.items import Item, ItemMemory, item_key
from lsp.lanes import Lane, Superseded
from lsp.languages import language_of
from lsp.notebooks import Notebooks
from lsp.offers import Offers
from lsp.positions import Encoding
from lsp.settings import Settings
from lsp.triggers import is_mid_word, is_read_only
from lsp.workspace import Workspace
from prompts.budget import BudgetKeeper, NoPromptBudget
from prompts.text import Cursor, SourceFile, SourceText
from server.client import EngineError, EngineUnavailable
from server.request import Counters
from server.wire import CompletionRequest

WARM_UP_MS = 60_000
"""A prompt that is computed in idle time may take so long."""


@dataclass(frozen=True)
class Selected:
    """The entry that is selected in the editor's own popup: its text is to replace [start, end), each (line, column in
    the editor's units)."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(frozen=True)
class Answer:
    """An outcome and what it was made for; snapshot and cursor are None when the document isn't known.

    lead: what the items begin with, in the place of the text from ``start`` to the cursor.
    """

    outcome: Outcome
    snapshot: Snapshot | None = None
    cursor: Cursor | None = None
    start: Cursor | None = None
    lead: str = ""

    @property
    def version(self) -> int | None:
        return self.snapshot.version if self.snapshot else None


@dataclass(frozen=True)
class Place:
    """Where an item is wanted: the document as it is, and as it would be with what is selected in the popup."""

    document: Document
    snapshot: Snapshot
    source: SourceText
    cursor: Cursor

    @property
    def language(self) -> str:
        return language_of(self.document.language, unquote(self.document.uri))


class Completer:
    """Completes open documents with one engine. ``encoding`` is set once it is negotiated."""

    def __init__(
        self, documents: DocumentStore, workspace: Workspace, link: EngineLink, notebooks: Notebooks | None = None
    ) -> None:
        self.documents = documents
        self.notebooks = notebooks or Notebooks()
        self.workspace = workspace
        self.settings = Settings()
        self.encoding: Encoding = "utf-16"
        self.budget = BudgetKeeper()
        self.memory = ItemMemory()
        self.offers = Offers()
        self.idle = IdleWork()
        self.ahead = IdleWork(PAUSE_S)
        self._accepted: Accepted | None = None
        """What is computed ahead, or was last."""
        self._nothing: Outcome | None = None
        """The outcome there when it has no item."""
        self.debounce = Debounce()
        self.reading: Reading = lambda progress: None
        """Called as ``completion.Reading`` has it; may be replaced."""
        self._link = link
        self._lanes: dict[str, Lane[Outcome]] = {}

    def changed(self, uri: str) -> None:
        """The document changed or went away: what runs for it is for a text that is no more."""
        self.debounce.key(time.monotonic())
        self.offers.changed(uri)
        self._drop(uri)
        if self.documents.get(uri) is None:
            self._stop_ahead()

    def _drop(self, uri: str) -> None:
        if (lane := self._lanes.get(uri)) is not None:
            lane.supersede()
            if lane.idle:
                del self._lanes[uri]

    async def answer(
        self, uri: str, line: int, units: int, *, typing: bool, selected: Selected | None = None, waits: bool = True
    ) -> Answer:
        """Complete at the editor's position.

        typing: the request wasn't asked for by hand, so it waits a moment, gets one item, and none where none is
        wanted. waits: False takes what is in memory and asks no engine. Raises nothing but CancelledError.
        """
        # Everything up to the first await sees the document as it was when the request came.
        found = self.place(uri, line, units)
        if isinstance(found, Outcome):
            return Answer(found)
        place = found
        answer = Answer(BLANK, place.snapshot, place.cursor, place.cursor)
        if is_blank(place.source):
            return answer
        if selected is not None:
            if (chosen := self._with_selected(place, selected)) is None:
                return replace(answer, outcome=Outcome("excluded", detail="the popup's entry stands elsewhere"))
            place, start = chosen
            answer = replace(answer, start=start, lead=selected.text)
        if typing and (reason := self._unwanted(place)):
            return replace(answer, outcome=Outcome(reason))
        return replace(answer, outcome=await self._at(place, typing=typing, waits=waits))

    def request_at(self, uri: str, line: int, units: int) -> tuple[CompletionRequest, int] | Outcome:
        """What the engine would be asked for an item at the editor's position, and the document's version; an outcome
        where it would not be asked."""
        place = self.place(uri, line, units)
        if isinstance(place, Outcome):
            return place
        if is_blank(place.source):
            return BLANK
        try:
            return self._request(place), place.snapshot.version
        except NoPromptBudget as error:
            return Outcome("error", detail=str(error))

    def place(self, uri: str, line: int, units: int) -> Place | Outcome:
        """The place in an open document, which has the focus then; an outcome where nothing is ever offered."""
        document = self.documents.get(uri)
        if document is None:
            return Outcome("excluded", detail="the document is not open")
        if not document.in_sync:
            return Outcome("excluded", detail="changes came out of order; open the document again")
        notebook = self.notebooks.of_cell(uri)
        if self.workspace.excluded(uri) or (notebook is not None and self.workspace.excluded(notebook.uri)):
            return Outcome("excluded", detail="an ignored file or one that looks like a secret")
        if is_read_only(uri):
            return Outcome("read_only", detail="nobody types into a document of this kind")
        self.documents.focus(uri)
        snapshot = document.snapshot()
        return Place(document, snapshot, snapshot.source, snapshot.cursor(line, units, self.encoding))

    def _with_selected(self, place: Place, selected: Selected) -> tuple[Place, Cursor] | None:
        """The place behind the popup's entry, and where that begins; None when it isn't at the cursor."""
        start = place.snapshot.cursor(*selected.start, self.encoding)
        end = place.snapshot.cursor(*selected.end, self.encoding)
        if start.line != place.cursor.line or end != place.cursor or end < start or "\n" in selected.text:
            return None
        lines = list(place.source.lines)
        lines[start.line] = lines[start.line][: start.column] + selected.text + lines[start.line][end.column :]
        cursor = Cursor(start.line, start.column + len(selected.text))
        return replace(place, source=SourceText(tuple(lines)), cursor=cursor), start

    def _unwanted(self, place: Place) -> str:
        """The reason why nothing is offered here to somebody who types; empty where something is."""
        if place.document.several_cursors:
            return "several_cursors"
        if is_mid_word(place.source, place.cursor):
            return "mid_word"
        if self.offers.is_dismissed(place.snapshot.uri, place.snapshot.version, place.cursor):
            return "dismissed"
        return ""

    async def _at(self, place: Place, *, typing: bool, waits: bool) -> Outcome:
        began = time.perf_counter()
        uri = place.snapshot.uri
        self.idle.stop()
        try:
            request = self._request(place)
        except NoPromptBudget as error:
            return Outcome("error", detail=str(error))
        key = item_key(uri, request.segments, self.settings.max_tokens)
        around = surroundings(request.segments)
        wanted = 1 if typing else self.settings.alternatives
        known = self.memory.get(key, around.prefix, around.suffix)
        items = self.memory.all(key, around.prefix, around.suffix)[:wanted] if known else []
        if known and len(items) >= wanted:
            self._drop(uri)
            self._rebuild_later(place, key)
            self._look_ahead(place, request, key, items[0])
            spent = (time.perf_counter() - began) * 1000
            first, *others = items
            return Outcome(
                "shown",
                first.text,
                first.replaces,
                tuple(others),
                cached=True,
                prefetched=known[1],
                counters=Counters(ttft_ms=spent, total_ms=spent),
            )
        if typing and self._nothing and Accepted(key, around.prefix, around.suffix) == self._accepted:
            self._rebuild_later(place, key)
            return replace(self._nothing, cached=True, prefetched=True)
        if not waits:
            return Outcome("not_waited", detail="nothing is in memory, and the popup doesn't wait")

        self._stop_ahead()

        async def work() -> Outcome:
            if typing and (wait_ms := self.debounce.wait_ms(self.settings.debounce_ms)):
                await asyncio.sleep(wait_ms / 1000)
            return await self._ask(place, request, wanted, items)

        lane = self._lanes.setdefault(uri, Lane())
        try:
            outcome = await lane.request((place.snapshot.version, place.source, place.cursor, wanted), work)
        except Superseded:
            outcome = Outcome("cancelled", detail="a newer request or change came")
        if self.documents.get(uri) is not place.document or place.document.version != place.snapshot.version:
            outcome = Outcome("cancelled", detail="the document changed", counters=outcome.counters)
        elif outcome.reason == "shown":
            for item in reversed(outcome.items):
                self.memory.put(key, around.prefix, around.suffix, item)
            self.debounce.answered(outcome.counters.total_ms)
            self._look_ahead(place, request, key, outcome.items[0])
        self._rebuild_later(place, key)
        return outcome

    def _look_ahead(self, place: Place, request: CompletionRequest, key: Hashable, item: Item) -> None:
        """Compute what follows ``item`` once it is accepted, unless that is done or being done."""
        if not self.settings.prefetch:
            return
        ahead, prefix, suffix = request_after(request, item)
        accepted = Accepted(key, prefix, suffix)
        if accepted != self._accepted and self.memory.get(key, prefix, suffix) is None:
            self._accepted, self._nothing = accepted, None
            self.ahead.later(lambda: self._prefetch(ahead, accepted, place.language))

    async def _prefetch(self, request: CompletionRequest, accepted: Accepted, language: str) -> None:
        try:
            outcome = await complete(self._link.engine(), request, self.budget, language)
        except (EngineUnavailable, EngineError):
            return  # the next request finds out and says so
        if outcome.reason == "empty" or outcome.reason.startswith("filtered:"):
            self._nothing = Outcome(outcome.reason, detail="made before it was asked for")
        if outcome.items:
            self.memory.put(accepted.key, accepted.prefix, accepted.suffix, outcome.items[0], prefetched=True)

    def _stop_ahead(self) -> None:
        self.ahead.stop()
        self._accepted = self._nothing = None

    def forget(self) -> None:
        """Another engine has come: what the one before said doesn't count."""
        self.memory.clear()
        self._stop_ahead()

    def stop(self) -> None:
        """End what is done in idle time."""
        self.idle.stop()
        self._stop_ahead()

    def _rebuild_later(self, place: Place, key: Hashable) -> None:
        if self.workspace.surroundings_of(place.document, self.documents).ledger.rebuild_due:
            self.idle.later(lambda: self._rebuild(place.document, place.cursor, key))

    def _request(self, place: Place) -> CompletionRequest:
        source, cursor, window = place.source, place.cursor, place.document.prefix_window
        uri = place.snapshot.uri
        if (notebook := self.notebooks.of_cell(uri)) is not None:
            source, cursor = notebook.around(uri, source, cursor, place.language, self._text_of)
            window = notebook.window
        return completion_request(
            SourceFile(self.workspace.shown_path(uri), source),
            cursor,
            self.workspace.surroundings_of(place.document, self.documents),
            self.settings,
            self.budget,
            window,
        )

    def _text_of(self, uri: str) -> SourceText | None:
        document = self.documents.get(uri)
        return document.snapshot().source if document is not None and document.in_sync else None

    async def _rebuild(self, document: Document, cursor: Cursor, key: Hashable) -> None:
        """Lay the prompts of the document's workspace out anew, and have the engine compute the new one."""
        snapshot = document.snapshot()
        if self.documents.get(snapshot.uri) is not document or not document.in_sync:
            return
        if self.workspace.excluded(snapshot.uri):
            return
        self.workspace.surroundings_of(document, self.documents).ledger.rebuild()
        try:
            request = self._request(Place(document, snapshot, snapshot.source, cursor))
            self.memory.moved(key, item_key(snapshot.uri, request.segments, self.settings.max_tokens))
            self._stop_ahead()
            request = replace(request, max_tokens=1, timeout_ms=WARM_UP_MS, priority="background")
            await complete(self._link.engine(), request, self.budget, reading=self.reading)
        except (EngineUnavailable, EngineError, NoPromptBudget):
            pass  # the next request finds out and says so

    async def _ask(self, place: Place, request: CompletionRequest, wanted: int, known: Sequence[Item] = ()) -> Outcome:
        """known: items that are there already; the engine is asked for others."""
        requests = iter((request,))

        def build() -> CompletionRequest:
            # The prompt made for the memory's key; only one that overflowed is made again.
            return next(requests, None) or self._request(place)

        connection = None
        try:
            connection = self._link.engine()
            if known:
                first, *others = known
                outcome = Outcome("shown", first.text, first.replaces, tuple(others))
            else:
                outcome = await complete_within_context(connection, build, self.budget, place.language, self.reading)
            outcome = await with_alternatives(connection, request, outcome, self.budget, wanted, place.language)
            if outcome.reason == "timeout" and self._link.state != "ready":
                return replace(outcome, reason="error", detail=self._link.message)
            if outcome.reason == "timeout":
                self._link.suspect(connection)
            return outcome
        except EngineUnavailable as error:
            if connection is not None:
                self._link.lost(connection)
            return Outcome("error", detail=str(error))
        except (EngineError, NoPromptBudget) as error:
            return Outcome("error", detail=str(error))
