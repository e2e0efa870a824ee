"""From a position in an open document to an outcome: snapshot, memory of items, lane, engine.

Every request ends here with exactly one reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace

from lsp.completion import BLANK, Outcome, complete, complete_within_context, completion_request, is_blank, surroundings
from lsp.debounce import Debounce
from lsp.documents import Document, DocumentStore, Snapshot
from lsp.engine import EngineLink
from lsp.idle import IdleWork
from lsp.items import ItemMemory, item_key
from lsp.lanes import Lane, Superseded
from lsp.positions import Encoding
from lsp.settings import Settings
from lsp.workspace import Workspace
from prompts.budget import BudgetKeeper, NoPromptBudget
from prompts.text import Cursor, SourceFile
from server.client import EngineError, EngineUnavailable
from server.request import Counters
from server.wire import CompletionRequest

WARM_UP_MS = 60_000
"""A prompt that is computed in idle time may take so long."""


@dataclass(frozen=True)
class Answer:
    """An outcome and what it was made for; snapshot and cursor are None when the document isn't known."""

    outcome: Outcome
    snapshot: Snapshot | None = None
    cursor: Cursor | None = None

    @property
    def version(self) -> int | None:
        return self.snapshot.version if self.snapshot else None


class Completer:
    """Completes open documents with one engine. ``encoding`` is set once it is negotiated."""

    def __init__(self, documents: DocumentStore, workspace: Workspace, link: EngineLink) -> None:
        self.documents = documents
        self.workspace = workspace
        self.settings = Settings()
        self.encoding: Encoding = "utf-16"
        self.budget = BudgetKeeper()
        self.memory = ItemMemory()
        self.idle = IdleWork()
        self.debounce = Debounce()
        self._link = link
        self._lanes: dict[str, Lane[Outcome]] = {}

    def changed(self, uri: str) -> None:
        """The document changed or went away: what runs for it is for a text that is no more."""
        self.debounce.key(time.monotonic())
        self._drop(uri)

    def _drop(self, uri: str) -> None:
        if (lane := self._lanes.get(uri)) is not None:
            lane.supersede()
            if lane.idle:
                del self._lanes[uri]

    async def answer(self, uri: str, line: int, units: int, *, typing: bool) -> Answer:
        """Complete at the editor's position. typing: the request wasn't asked for by hand, so it waits a moment.

        Raises nothing but CancelledError.
        """
        document = self.documents.get(uri)
        if document is None:
            return Answer(Outcome("excluded", detail="the document is not open"))
        if not document.in_sync:
            return Answer(Outcome("excluded", detail="changes came out of order; open the document again"))
        if self.workspace.excluded(uri):
            return Answer(Outcome("excluded", detail="an ignored file or one that looks like a secret"))
        self.idle.stop()
        # Everything up to the first await sees the document as it was when the request came.
        began = time.perf_counter()
        self.documents.focus(uri)
        snapshot = document.snapshot()
        cursor = snapshot.cursor(line, units, self.encoding)
        if is_blank(snapshot.source):
            return Answer(BLANK, snapshot, cursor)
        try:
            request = self._request(document, snapshot, cursor)
        except NoPromptBudget as error:
            return Answer(Outcome("error", detail=str(error)), snapshot, cursor)
        key = item_key(uri, request.segments, self.settings.max_tokens)
        prefix = surroundings(request.segments).prefix
        if (rest := self.memory.get(key, prefix)) is not None:
            self._drop(uri)
            spent = (time.perf_counter() - began) * 1000
            counters = Counters(ttft_ms=spent, total_ms=spent)
            return Answer(Outcome("shown", rest, cached=True, counters=counters), snapshot, cursor)

        async def work() -> Outcome:
            if typing and (wait_ms := self.debounce.wait_ms(self.settings.debounce_ms)):
                await asyncio.sleep(wait_ms / 1000)
            return await self._ask(document, snapshot, cursor, request)

        lane = self._lanes.setdefault(uri, Lane())
        try:
            outcome = await lane.request((snapshot.version, cursor), work)
        except Superseded:
            outcome = Outcome("cancelled", detail="a newer request or change came")
        if self.documents.get(uri) is not document or document.version != snapshot.version:
            outcome = Outcome("cancelled", detail="the document changed", counters=outcome.counters)
        elif outcome.reason == "shown":
            self.memory.put(key, prefix, outcome.text)
            self.debounce.answered(outcome.counters.total_ms)
        if self.workspace.surroundings_of(document, self.documents).ledger.rebuild_due:
            self.idle.later(lambda: self._rebuild(document, cursor, key))
        return Answer(outcome, snapshot, cursor)

    def _request(self, document: Document, snapshot: Snapshot, cursor: Cursor) -> CompletionRequest:
        return completion_request(
            SourceFile(self.workspace.shown_path(snapshot.uri), snapshot.source),
            cursor,
            self.workspace.surroundings_of(document, self.documents),
            self.settings,
            self.budget,
            document.prefix_window,
        )

    async def _rebuild(self, document: Document, cursor: Cursor, key: Hashable) -> None:
        """Lay the prompts of the document's workspace out anew, and have the engine compute the new one."""
        snapshot = document.snapshot()
        if self.documents.get(snapshot.uri) is not document or not document.in_sync:
            return
        if self.workspace.excluded(snapshot.uri):
            return
        self.workspace.surroundings_of(document, self.documents).ledger.rebuild()
        try:
            request = self._request(document, snapshot, cursor)
            self.memory.moved(key, item_key(snapshot.uri, request.segments, self.settings.max_tokens))
            request = replace(request, max_tokens=1, timeout_ms=WARM_UP_MS, priority="background")
            await complete(self._link.engine(), request, self.budget)
        except (EngineUnavailable, EngineError, NoPromptBudget):
            pass  # the next request finds out and says so

    async def _ask(self, document: Document, snapshot: Snapshot, cursor: Cursor, request: CompletionRequest) -> Outcome:
        requests = iter((request,))

        def build() -> CompletionRequest:
            # The prompt made for the memory's key; only one that overflowed is made again.
            return next(requests, None) or self._request(document, snapshot, cursor)

        connection = None
        try:
            connection = self._link.engine()
            outcome = await complete_within_context(connection, build, self.budget)
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
