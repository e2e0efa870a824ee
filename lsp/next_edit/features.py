"""``draftline/nextEdit``: where the last change is to be repeated, as an edit that the editor shows and applies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp.completer import Completer, Place
from lsp.completion import Outcome
from lsp.edit.check import Refused, check_syntax
from lsp.edit.editor import EditOutcome
from lsp.edit.hunks import Hunk
from lsp.edit.results import outcome_json
from lsp.idle import IdleWork
from lsp.next_edit.recent import RecentChanges
from lsp.next_edit.repetition import places, substitutions
from lsp.status import Status

NEXT_EDIT = "draftline/nextEdit"
AVAILABLE = "draftline/nextEditAvailable"
"""Notification to the editor: {uri, version, places, detail}; no places: what was said before no longer holds."""
PAUSE_S = 0.5
"""After a change, before it is looked for where else it applies."""
MOST_FOLLOWED = 2000
"""Lines of a document in which that is done without being asked: it takes a tenth of a second at most."""
MOST_PARSED = 30_000
"""Lines in all, when places are tried one by one: about half a second."""


class NextEdit:
    """tell: called a moment after a change that applies elsewhere too, and when that no longer holds; none at first."""

    def __init__(self, completer: Completer, clock: Callable[[], float] = time.monotonic) -> None:
        self.tell: Callable[[dict[str, Any]], None] | None = None
        self._completer = completer
        self._clock = clock
        self._recent = RecentChanges(completer.documents)
        self._idle = IdleWork(PAUSE_S)
        self._told = ""

    def changed(self, uri: str) -> None:
        """A document was opened, changed or closed."""
        self._recent.changed(uri, self._clock())
        if self.tell is not None and self._completer.settings.next_edit:
            self._idle.later(lambda: self._look(uri))

    def stop(self) -> None:
        self._idle.stop()

    async def _look(self, uri: str) -> None:
        _, made = self._recent.hunks(uri)
        document = self._completer.documents.get(uri)
        if self.tell is None or document is None or document.line_count > MOST_FOLLOWED:
            return
        outcome = self.at(uri, max(_rows(made), default=0), 0)
        if outcome.hunks or self._told == uri:
            self._told = uri if outcome.hunks else ""
            self.tell(
                {
                    "uri": uri,
                    "version": document.version,
                    "places": len(outcome.hunks),
                    "detail": outcome.detail if outcome.hunks else "",
                }
            )

    def at(self, uri: str, line: int, units: int) -> EditOutcome:
        """The change nearest to the place, wherever else it applies; reason "none" where it does nowhere."""
        place = self._completer.place(uri, line, units)
        if isinstance(place, Outcome):
            return EditOutcome(place.reason, place.detail)
        before, made = self._recent.hunks(uri)
        own = _rows(made)
        rules = sorted(substitutions(before, made), key=lambda rule: abs(rule[0] - place.cursor.line))
        for _, rule in rules:
            hunks = _parseable(place, places(place.source.lines, rule, own))
            if hunks:
                lines = hunks[0].start, hunks[-1].end
                detail = f"{rule.old} became {rule.new}"
                return EditOutcome("ready", detail, hunks=tuple(hunks), lines=lines, place=place)
        return EditOutcome("none", "the last changes repeat nowhere in the document", place=place)


def add_next_edit(server: LanguageServer, next_edit: NextEdit, completer: Completer, status: Status) -> None:
    """Register the request."""

    @server.feature(NEXT_EDIT)
    def at(params: Any) -> dict[str, Any]:
        uri = getattr(getattr(params, "textDocument", None), "uri", None)
        position = getattr(params, "position", None)
        line, character = getattr(position, "line", None), getattr(position, "character", None)
        if not isinstance(uri, str) or type(line) is not int or type(character) is not int:
            raise JsonRpcInvalidParams(f"{NEXT_EDIT} needs a textDocument with a uri, and a position")
        outcome = next_edit.at(uri, line, character)
        version = outcome.place.snapshot.version if outcome.place else None
        status.request("next_edit", uri, version, Outcome(outcome.reason))  # what was replaced is source text
        return outcome_json(outcome, completer.encoding)


def _rows(made: list[Hunk]) -> set[int]:
    """The lines that were changed by hand, as they are counted now."""
    rows, moved = set[int](), 0
    for hunk in made:
        rows |= set(range(hunk.start + moved, hunk.start + moved + len(hunk.lines)))
        moved += len(hunk.lines) - (hunk.end - hunk.start)
    return rows


def _parseable(place: Place, hunks: list[Hunk]) -> list[Hunk]:
    """Those that leave the document as well formed as it is."""
    if not hunks or _parses(place, hunks):
        return hunks
    if len(hunks) * len(place.source.lines) > MOST_PARSED:
        return []
    return [hunk for hunk in hunks if _parses(place, [hunk])]


def _parses(place: Place, hunks: list[Hunk]) -> bool:
    lines = list(place.source.lines)
    for hunk in hunks:
        lines[hunk.start : hunk.end] = hunk.lines
    try:
        check_syntax((), place.source.lines, lines, (), place.language)
    except Refused:
        return False
    return True
