"""``textDocument/completion``: the same answer as an entry of the ordinary popup, for editors without ghost text."""

from __future__ import annotations

import re

from lsprotocol import types

from lsp.completer import Answer
from lsp.inline import item_data, position_of, with_line_ends
from lsp.positions import Encoding
from prompts.text import Cursor

LABEL_LENGTH = 80

_WORD_BEFORE = re.compile(r"\w*$")


def popup_items(answer: Answer, encoding: Encoding) -> types.CompletionList:
    """One entry or none; it replaces the word before the cursor, which is what popups match against."""
    snapshot, cursor = answer.snapshot, answer.cursor
    if snapshot is None or cursor is None or not answer.outcome.items:
        return types.CompletionList(is_incomplete=True, items=[])
    item = answer.outcome.items[0]
    found = _WORD_BEFORE.search(snapshot.source.lines[cursor.line][: cursor.column])
    word = found.group() if found else ""
    text = word + with_line_ends(item.text, snapshot)
    start = position_of(snapshot, Cursor(cursor.line, cursor.column - len(word)), encoding)
    end = position_of(snapshot, Cursor(cursor.line, cursor.column + item.replaces), encoding)
    entry = types.CompletionItem(
        label=label_of(word + item.text),
        kind=types.CompletionItemKind.Text,
        detail="Draftline",
        documentation=text if len(text.splitlines()) > 1 else None,
        filter_text=word or None,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(types.Range(start, end), text),
        data=item_data(answer),
    )
    return types.CompletionList(is_incomplete=True, items=[entry])


def label_of(text: str) -> str:
    """One line of at most 80 characters that says what would be inserted."""
    first, _, more = text.strip().partition("\n")
    label = " ".join(first.split())
    if more or len(label) > LABEL_LENGTH:
        label = label[: LABEL_LENGTH - 1].rstrip() + "…"
    return label
