"""An edit as the protocol has it: positions in the editor's units, the document's own line ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lsprotocol import types

from lsp.completion import Outcome
from lsp.documents import Snapshot
from lsp.edit.editor import EditOutcome
from lsp.edit.hunks import Hunk
from lsp.positions import Encoding, units_of


def outcome_json(outcome: EditOutcome, encoding: Encoding) -> dict[str, Any]:
    """The answer of ``draftline/edit``."""
    edits = text_edits(outcome.place.snapshot, outcome.hunks, encoding) if outcome.place else []
    return {
        "reason": outcome.reason,
        "detail": outcome.detail,
        "version": outcome.place.snapshot.version if outcome.place else None,
        "lines": {"start": outcome.lines[0], "end": outcome.lines[1]},
        "hunks": hunks_json(outcome.hunks),
        "edits": [{"range": range_json(edit.range), "newText": edit.new_text} for edit in edits],
        "text": outcome.text,
        "figures": Outcome(outcome.reason, counters=outcome.counters).figures(),
    }


def text_edits(snapshot: Snapshot, hunks: Sequence[Hunk], encoding: Encoding) -> list[types.TextEdit]:
    """The hunks as edits of the document, with its line ends; one each, so that they can be accepted one by one."""
    return [_text_edit(snapshot, hunk, encoding) for hunk in hunks]


def _text_edit(snapshot: Snapshot, hunk: Hunk, encoding: Encoding) -> types.TextEdit:
    lines, end = snapshot.source.lines, snapshot.line_end
    start, stop = types.Position(hunk.start, 0), types.Position(hunk.end, 0)
    text = "".join(line + end for line in hunk.lines)
    if hunk.end == len(lines):
        # The last line has no end: what stands before takes its place.
        stop = types.Position(len(lines) - 1, units_of(lines[-1], len(lines[-1]), encoding))
        text = end.join(hunk.lines)
        if hunk.start and (hunk.start == hunk.end or not hunk.lines):
            before = lines[hunk.start - 1]
            start = types.Position(hunk.start - 1, units_of(before, len(before), encoding))
            text = end + text if hunk.lines else ""
    return types.TextEdit(types.Range(start, stop), text)


def hunks_json(hunks: Sequence[Hunk]) -> list[dict[str, Any]]:
    return [{"start": hunk.start, "end": hunk.end, "lines": list(hunk.lines)} for hunk in hunks]


def range_json(where: types.Range) -> dict[str, Any]:
    return {
        side: {"line": at.line, "character": at.character} for side, at in (("start", where.start), ("end", where.end))
    }
