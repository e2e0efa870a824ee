"""What was changed in a document lately: its lines when the present stretch of work began, and as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsp.documents import Document, DocumentStore, Snapshot
from lsp.edit.hunks import Hunk, hunks_of

PAUSE_S = 30.0
"""A stretch of work ends with so many seconds without a change."""
MOST_LINES = 20_000
"""Longer documents are not followed: each change would cost what their length does."""
MOST_CHANGED = 400
"""Lines between the first and the last that changed; more is no edit that repeats."""


@dataclass
class _Followed:
    document: Document
    begun: Snapshot
    last: Snapshot
    at: float


class RecentChanges:
    """Follows open documents. Times are seconds of a clock of the caller's."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._followed: dict[str, _Followed] = {}

    def changed(self, uri: str, now: float) -> None:
        """The document was opened, changed or closed."""
        document, known = self._documents.get(uri), self._followed.pop(uri, None)
        if document is None or not document.in_sync or document.line_count > MOST_LINES:
            return
        snapshot = document.snapshot()
        if known is None or known.document is not document:
            known = _Followed(document, snapshot, snapshot, now)
        elif now - known.at > PAUSE_S:
            known.begun = known.last
        known.last, known.at = snapshot, now
        self._followed[uri] = known

    def hunks(self, uri: str) -> tuple[Sequence[str], list[Hunk]]:
        """(the lines before, what was changed in them): none where nothing was, or too much."""
        known = self._followed.get(uri)
        if known is None:
            return (), []
        old, new = known.begun.source.lines, known.last.source.lines
        first = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        rest = min(len(old), len(new)) - first
        same = next((n for n in range(rest) if old[-1 - n] != new[-1 - n]), rest)
        before, after = old[first : len(old) - same], new[first : len(new) - same]
        if max(len(before), len(after)) > MOST_CHANGED:
            return old, []
        return old, hunks_of(before, after, first)
