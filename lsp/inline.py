"""``textDocument/inlineCompletion``: an answer as ghost text."""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from lsp.completer import Answer
from lsp.documents import Snapshot
from lsp.offers import Offers
from lsp.positions import Encoding, units_of
from prompts.text import Cursor

ACCEPTED = "draftline.accepted"
"""The command an editor runs after inserting an item; its argument is ``item_data``."""


def inline_items(answer: Answer, encoding: Encoding, offers: Offers) -> types.InlineCompletionList:
    """The items, each in the place of nothing, or of closers after the cursor and of what a popup has selected."""
    snapshot, cursor, start = answer.snapshot, answer.cursor, answer.start
    if snapshot is None or cursor is None or start is None:
        return types.InlineCompletionList(items=[])
    items = []
    for item in answer.outcome.items:
        text = with_line_ends(answer.lead + item.text, snapshot)
        offer = offers.add(snapshot.uri, snapshot.version, cursor, text)
        data = {"id": offer.id, **item_data(answer)}
        items.append(
            types.InlineCompletionItem(
                insert_text=text,
                # Without a range, some editors replace the rest of the line.
                range=types.Range(
                    position_of(snapshot, start, encoding),
                    position_of(snapshot, Cursor(cursor.line, cursor.column + item.replaces), encoding),
                ),
                command=types.Command(title="Draftline: item accepted", command=ACCEPTED, arguments=[data]),
            )
        )
    return types.InlineCompletionList(items=items)


def item_data(answer: Answer) -> dict[str, Any]:
    """What every item carries: the document and version it was made for, and its figures."""
    assert answer.snapshot is not None
    data = {"uri": answer.snapshot.uri, "version": answer.snapshot.version, "reason": answer.outcome.reason}
    return data | answer.outcome.figures()


def with_line_ends(text: str, snapshot: Snapshot) -> str:
    """The text with the document's own line ends."""
    return text.replace("\n", snapshot.line_end)


def position_of(snapshot: Snapshot, place: Cursor, encoding: Encoding) -> types.Position:
    """The place in the editor's units."""
    return types.Position(place.line, units_of(snapshot.source.lines[place.line], place.column, encoding))
