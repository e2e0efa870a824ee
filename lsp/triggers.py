"""Where nothing is offered, whatever the model would say. Each rule is a reason that a request ends with."""

from __future__ import annotations

from prompts.text import Cursor, SourceText

READ_ONLY_SCHEMES = frozenset((
    "output", "debug", "git", "gitfs", "gitlens", "review", "pr", "svn", "fugitive", "diffview", "man", "jdt", "deno",
    "vscode-notebook-cell-output", "vscode-notebook-cell-metadata", "vscode-scm", "vscode-settings", "search-editor",
    "vscode-chat-code-block", "chat-editing-snapshot-text-model", "walkthrough", "comment", "http", "https",
))  # fmt: skip
"""Of a document's address: what editors show and nobody types into, or that isn't a text of the user's own."""


def is_read_only(uri: str) -> bool:
    return uri.partition(":")[0].lower() in READ_ONLY_SCHEMES


def is_mid_word(source: SourceText, cursor: Cursor) -> bool:
    """Whether the cursor stands inside a name: what would be inserted becomes a part of it.

    The rest of that name is text that the user has written already and is changing.
    """
    line = source.lines[cursor.line]
    return is_word(line[cursor.column - 1 : cursor.column]) and is_word(line[cursor.column : cursor.column + 1])


def is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
