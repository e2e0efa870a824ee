"""A text as lines, and a place in it: what the assembly of a prompt works on. All line ends are LF."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile("\r\n|\r|\n")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, order=True)
class Cursor:
    """A place in a text: line and column from 0, the column in code points."""

    line: int
    column: int


@dataclass(frozen=True)
class SourceText:
    """A text that never changes. lines: without their ends, at least one; joined with LF they are the text."""

    lines: tuple[str, ...]

    @classmethod
    def from_text(cls, text: str) -> SourceText:
        """Any of LF, CRLF and a lone CR ends a line."""
        return cls(tuple(_LINE_END.split(text)))

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def clamp(self, cursor: Cursor) -> Cursor:
        """The nearest place that exists."""
        if cursor.line < 0:
            return Cursor(0, 0)
        if cursor.line >= len(self.lines):
            return Cursor(len(self.lines) - 1, len(self.lines[-1]))
        return Cursor(cursor.line, min(max(cursor.column, 0), len(self.lines[cursor.line])))


@dataclass(frozen=True)
class SourceFile:
    """A text and the path that the model is shown: relative to its workspace root, with ``/``; None for no path."""

    path: str | None
    text: SourceText


def byte_length(text: str) -> int:
    """Length in UTF-8; a lone surrogate counts 3, as the character that replaces it."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def text_bytes(text: SourceText, limit: int | None = None) -> int:
    """Length in UTF-8, line ends included; counting stops once it exceeds ``limit``."""
    size = -1
    for line in text.lines:
        size += byte_length(line) + 1
        if limit is not None and size > limit:
            break
    return size


def sendable(text: str) -> str:
    """A lone surrogate can't be written as UTF-8, so the model sees U+FFFD; everything else stays."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
