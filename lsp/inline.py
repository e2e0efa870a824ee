"""``textDocument/inlineCompletion``: an answer as ghost text."""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from lsp.completer import Answer
from lsp.positions import Encoding, units_of

ACCEPTED = "draftline.accepted"
"""The command an editor runs after inserting an item; its argument is ``item_data``."""


def inline_items(answer: Answer, encoding: Encoding) -> types.InlineCompletionList:
    """One item, inserted at the cursor, or none."""
    if answer.outcome.reason != "shown" or answer.snapshot is None or answer.cursor is None:
        return types.InlineCompletionList(items=[])
    position = editor_position(answer, encoding)
    item = types.InlineCompletionItem(
        insert_text=insert_text(answer),
        # Without a range, some editors replace the rest of the line.
        range=types.Range(position, position),
        command=types.Command(title="Draftline: item accepted", command=ACCEPTED, arguments=[item_data(answer)]),
    )
    return types.InlineCompletionList(items=[item])


def item_data(answer: Answer) -> dict[str, Any]:
    """What every item carries: the document and version it was made for, and its figures."""
    assert answer.snapshot is not None
    data = {"uri": answer.snapshot.uri, "version": answer.snapshot.version, "reason": answer.outcome.reason}
    return data | answer.outcome.figures()


def insert_text(answer: Answer) -> str:
    """The item's text with the document's own line ends."""
    assert answer.snapshot is not None
    return answer.outcome.text.replace("\n", answer.snapshot.line_end)


def editor_position(answer: Answer, encoding: Encoding, columns_back: int = 0) -> types.Position:
    """The cursor (or a place before it in its line) in the editor's units."""
    assert answer.snapshot is not None
    assert answer.cursor is not None
    line = answer.snapshot.source.lines[answer.cursor.line]
    return types.Position(answer.cursor.line, units_of(line, answer.cursor.column - columns_back, encoding))
