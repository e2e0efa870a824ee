"""Notebooks: a cell is a document of its own, and the cells around it are the text before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prompts.text import Cursor, SourceText
from prompts.window import PrefixWindow

_HASH_COMMENTS = frozenset(("python", "bash", "yaml", "r", "julia", "ruby", "perl", ""))


@dataclass(frozen=True)
class Cell:
    uri: str
    is_text: bool
    """Markdown, not code."""


@dataclass
class Notebook:
    """Its cells in order."""

    uri: str
    cells: list[Cell]
    window: PrefixWindow = field(default_factory=PrefixWindow)

    def around(
        self, uri: str, source: SourceText, cursor: Cursor, language: str, text_of: Callable[[str], SourceText | None]
    ) -> tuple[SourceText, Cursor]:
        """All cells as one text with the cell ``uri``, whose text is ``source``, in its place; and the cursor in it.

        Beside code, text is comments. text_of: of another cell; None for one that isn't known.
        """
        own = next(cell for cell in self.cells if cell.uri == uri)
        lines: list[str] = []
        moved = cursor
        for cell in self.cells:
            if cell.uri == uri:
                moved = Cursor(len(lines) + cursor.line, cursor.column)
                lines += [*source.lines, ""]
            elif (text := text_of(cell.uri)) is not None:
                is_comment = cell.is_text and not own.is_text
                lines += [*(commented(text.lines, language) if is_comment else text.lines), ""]
        return SourceText(tuple(lines[:-1])), moved


def commented(lines: Sequence[str], language: str) -> list[str]:
    mark = "#" if language in _HASH_COMMENTS else "//"
    return [f"{mark} {line}".rstrip() for line in lines]


class Notebooks:
    """The open ones."""

    def __init__(self) -> None:
        self._by_uri: dict[str, Notebook] = {}

    def open(self, uri: str, cells: Sequence[Cell]) -> None:
        self._by_uri[uri] = Notebook(uri, list(cells))

    def splice(self, uri: str, start: int, removed: int, cells: Sequence[Cell]) -> None:
        """Cells came, went or moved."""
        if (notebook := self._by_uri.get(uri)) is not None:
            notebook.cells[start : start + removed] = cells
            notebook.window.reset()

    def close(self, uri: str) -> None:
        self._by_uri.pop(uri, None)

    def of_cell(self, uri: str) -> Notebook | None:
        return next((one for one in self._by_uri.values() if any(cell.uri == uri for cell in one.cells)), None)
