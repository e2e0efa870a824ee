"""The editor's documents: kept as lines, changed in place, handed out as snapshots that never change.

An edit touches only the lines it names, so its cost follows the length of those lines and not the size of the file.
Line ends are those of the protocol (LF, CRLF and a lone CR); inside, a line has none, and what each was is kept
beside it, so that text can be inserted with the document's own.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lsp.positions import Encoding, column_of, join_surrogates
from prompts.text import Cursor, SourceText
from prompts.window import PrefixWindow

_LINE_END = re.compile("(\r\n|\r|\n)")


@dataclass(frozen=True)
class Change:
    """One content change: text that replaces [start, end), each (line, column in the editor's units).

    start None: the text replaces the whole document.
    """

    text: str
    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None


@dataclass(frozen=True)
class Snapshot:
    """A document at one version. line_end: what inserted text uses for a line break."""

    uri: str
    version: int
    source: SourceText
    line_end: str

    def cursor(self, line: int, units: int, encoding: Encoding) -> Cursor:
        """The editor's position, clamped to the document (past the last line: the end of the text)."""
        return _cursor(self.source.lines, line, units, encoding)


@dataclass
class Document:
    """One open document. ``in_sync`` is false from a change that can't be trusted until the next whole text.

    several_cursors: the last change put the same text into several places at once, as several cursors do, and the
    placeholders of a snippet that stand for one another.
    """

    uri: str
    version: int
    language: str = ""
    """As the editor names it."""
    in_sync: bool = True
    several_cursors: bool = False
    prefix_window: PrefixWindow = field(default_factory=PrefixWindow)
    _lines: list[str] = field(default_factory=lambda: [""])
    _ends: list[str] = field(default_factory=lambda: [""])
    _snapshot: Snapshot | None = None

    @classmethod
    def from_text(cls, uri: str, text: str, version: int = 0) -> Document:
        document = cls(uri=uri, version=version)
        document._replace_all(text)
        return document

    @property
    def line_count(self) -> int:
        return len(self._lines)

    def snapshot(self) -> Snapshot:
        """The document as it is now; the same object until the next change."""
        if self._snapshot is None:
            source = SourceText(tuple(self._lines))
            self._snapshot = Snapshot(self.uri, self.version, source, self._line_end())
        return self._snapshot

    def text(self) -> str:
        """The whole text with its own line ends, as the editor has it."""
        return "".join(part for pair in zip(self._lines, self._ends, strict=True) for part in pair)

    def apply(self, changes: Sequence[Change], version: int, encoding: Encoding) -> bool:
        """Apply the changes of one notification in order; true when the document is in sync afterwards.

        A version that isn't newer than the present one means that notifications were repeated or came in another
        order: the text can't be known any more, so the document is out of sync until a whole text arrives.
        """
        if version <= self.version:
            self.in_sync = False
        self.several_cursors = len(changes) > 1 and all(itertools.starmap(_is_echo, itertools.pairwise(changes)))
        for change in changes:
            if change.start is None:
                self._replace_all(change.text)
                self.in_sync = True
            elif self.in_sync:
                self._splice(change.start, change.end or change.start, change.text, encoding)
        self.version = version
        self._snapshot = None
        return self.in_sync

    def _replace_all(self, text: str) -> None:
        self._lines, self._ends = _split(text)
        self.prefix_window.reset()
        self._snapshot = None

    def _splice(self, start: tuple[int, int], end: tuple[int, int], text: str, encoding: Encoding) -> None:
        lines, ends = self._lines, self._ends
        first, last = _cursor(lines, *start, encoding), _cursor(lines, *end, encoding)
        if last < first:
            first, last = last, first
        head = lines[first.line][: first.column]
        tail = lines[last.line][last.column :] + ends[last.line]
        top = first.line
        if not head and top and ends[top - 1] == "\r" and (text + tail).startswith("\n"):
            # The CR before and this LF are one line end now.
            top -= 1
            head = lines[top] + "\r"
        new_lines, new_ends = _split(head + text + tail)
        if last.line + 1 < len(lines):
            # The split ends with the empty rest after the last line's own end, which is the next line's start.
            new_lines.pop()
            new_ends.pop()
        self.prefix_window.lines_replaced(top, last.line + 1 - top, len(new_lines))
        lines[top : last.line + 1] = new_lines
        ends[top : last.line + 1] = new_ends

    def _line_end(self) -> str:
        """The first 1,000 line ends decide; a document without any gets LF."""
        seen = Counter(self._ends[: min(1000, len(self._ends) - 1)])
        return seen.most_common(1)[0][0] if seen else "\n"


class DocumentStore:
    """The open documents, the one used least recently first."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents.values())

    def get(self, uri: str) -> Document | None:
        return self._documents.get(uri)

    def open(self, uri: str, text: str, version: int, language: str = "") -> Document:
        """Also for a document that is open already: an editor that sends it again means this text."""
        document = Document.from_text(uri, text, version)
        document.language = language
        self._documents[uri] = document
        return document

    def close(self, uri: str) -> None:
        self._documents.pop(uri, None)

    def focus(self, uri: str) -> None:
        """Note that the user works in this document now."""
        if (document := self._documents.pop(uri, None)) is not None:
            self._documents[uri] = document


def _is_echo(change: Change, later: Change) -> bool:
    """Whether the later one does the same further up, as editors send it for several cursors, the last one first.

    Keys that were typed one after the other and sent together touch one another or go down.
    """
    where, end = change.start, later.end or later.start
    return change.text == later.text and where is not None and end is not None and end < where


def _cursor(lines: Sequence[str], line: int, units: int, encoding: Encoding) -> Cursor:
    if line < 0:
        return Cursor(0, 0)
    if line >= len(lines):
        return Cursor(len(lines) - 1, len(lines[-1]))
    return Cursor(line, column_of(lines[line], units, encoding))


def _split(text: str) -> tuple[list[str], list[str]]:
    """Lines without their ends, and the ends; the last line's end is always empty."""
    text = join_surrogates(text)
    if "\r" not in text:
        lines = text.split("\n")
        return lines, ["\n"] * (len(lines) - 1) + [""]
    parts = _LINE_END.split(text)
    return parts[0::2], [*map(sys.intern, parts[1::2]), ""]
