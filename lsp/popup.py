"""``textDocument/completion``: the same answer as an entry of the ordinary popup, for editors without ghost text."""

from __future__ import annotations

import re

from lsprotocol import types

from lsp.completer import Answer
from lsp.inline import editor_position, insert_text, item_data
from lsp.positions import Encoding

LABEL_LENGTH = 80

_WORD_BEFORE = re.compile(r"\w*$")


def popup_items(answer: Answer, encoding: Encoding) -> types.CompletionList:
    """One entry or none; it replaces the word before the cursor, which is what popups match against."""
    if answer.outcome.reason != "shown" or answer.snapshot is None or answer.cursor is None:
        return types.CompletionList(is_incomplete=True, items=[])
    line = answer.snapshot.source.lines[answer.cursor.line]
    found = _WORD_BEFORE.search(line[: answer.cursor.column])
    word = found.group() if found else ""
    start = editor_position(answer, encoding, columns_back=len(word))
    text = word + insert_text(answer)
    item = types.CompletionItem(
        label=label_of(word + answer.outcome.text),
        kind=types.CompletionItemKind.Text,
        detail="Draftline",
        documentation=text if len(text.splitlines()) > 1 else None,
        filter_text=word or None,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(types.Range(start, editor_position(answer, encoding)), text),
        data=item_data(answer),
    )
    return types.CompletionList(is_incomplete=True, items=[item])


def label_of(text: str) -> str:
    """One line of at most 80 characters that says what would be inserted."""
    first, _, more = text.strip().partition("\n")
    label = " ".join(first.split())
    if more or len(label) > LABEL_LENGTH:
        label = label[: LABEL_LENGTH - 1].rstrip() + "…"
    return label
