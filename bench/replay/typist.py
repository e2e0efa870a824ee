"""Someone edits files as a history did: goes to a place, deletes what differs, types the rest in small pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from bench.replay.history import Edit, History
from prompts.text import Cursor, SourceFile, SourceText
from prompts.window import PrefixWindow

PIECE = re.compile(r"\w{1,6}|\n[ \t]*|[^\w\n]{1,4}")
"""What is typed between two requests."""

Step = Literal["goes to a file", "goes to a place", "types", "rests"]


@dataclass
class OpenFile:
    path: str
    source: SourceText
    window: PrefixWindow = field(default_factory=PrefixWindow)

    def replace(self, first: Cursor, last: Cursor, text: str) -> Cursor:
        """Put ``text`` in the place of what stands there. Returns its end."""
        lines = self.source.lines
        new = (lines[first.line][: first.column] + text + lines[last.line][last.column :]).split("\n")
        self.window.lines_replaced(first.line, last.line + 1 - first.line, len(new))
        self.source = SourceText((*lines[: first.line], *new, *lines[last.line + 1 :]))
        typed = text.split("\n")
        return Cursor(first.line + len(typed) - 1, len(typed[-1]) + (first.column if len(typed) == 1 else 0))


@dataclass(frozen=True)
class Moment:
    """A request is due: for ``cursor`` in ``file``. others: least recently used first."""

    step: Step
    file: OpenFile
    cursor: Cursor
    others: list[SourceFile]


def moments(history: History) -> Iterator[Moment]:
    """Every request of a session, and a rest after each edit. Edits that nobody typed happen between."""
    files = {path: OpenFile(path, SourceText.from_text(text)) for path, text in history.files.items()}
    before = ""
    for edit in history.edits:
        file = files[edit.path]
        if file.source.lines[edit.at : edit.at + len(edit.removed)] != edit.removed:
            continue  # the file was made anew in between
        if not edit.typed:
            file.source = SourceText(_applied(file.source.lines, edit))
            continue
        files[edit.path] = files.pop(edit.path)
        others = [SourceFile(path, other.source) for path, other in files.items() if path != edit.path]
        first, last, text = _difference(file.source, edit)
        cursor = file.replace(first, last, "")
        yield Moment("goes to a place" if edit.path == before else "goes to a file", file, cursor, others)
        for piece in PIECE.findall(text):
            cursor = file.replace(cursor, cursor, piece)
            yield Moment("types", file, cursor, others)
        before = edit.path
        yield Moment("rests", file, cursor, others)


def _applied(lines: tuple[str, ...], edit: Edit) -> tuple[str, ...]:
    return (*lines[: edit.at], *edit.added, *lines[edit.at + len(edit.removed) :])


def _difference(source: SourceText, edit: Edit) -> tuple[Cursor, Cursor, str]:
    """Where the text that the edit replaces begins and ends, and what comes in its place."""
    old = "".join(line + "\n" for line in edit.removed)
    new = "".join(line + "\n" for line in edit.added)
    shortest = min(len(old), len(new))
    top = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    below = next((i for i in range(shortest - top) if old[-1 - i] != new[-1 - i]), shortest - top)
    return (
        _cursor(source, edit.at, old[:top]),
        _cursor(source, edit.at, old[: len(old) - below]),
        new[top : len(new) - below],
    )


def _cursor(source: SourceText, at: int, text: str) -> Cursor:
    """Where ``text``, which begins in line ``at``, ends."""
    lines = text.split("\n")
    return source.clamp(Cursor(at + len(lines) - 1, len(lines[-1])))
