"""What an edit changes, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Hunk:
    """Lines start .. end - 1 (from 0, of the document) become ``lines``."""

    start: int
    end: int
    lines: tuple[str, ...]


def hunks_of(old: Sequence[str], new: Sequence[str], first: int, *, whole: bool = True) -> list[Hunk]:
    """The changes that turn the lines ``old``, which begin at line ``first``, into ``new``.

    whole: False as long as more of ``new`` is to come: what stands after the last line in common isn't known yet.
    """
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    if not whole:
        while blocks and blocks[-1][0] != "equal":
            blocks.pop()
    return [
        Hunk(first + start, first + end, tuple(new[begin:stop]))
        for kind, start, end, begin, stop in blocks
        if kind != "equal"
    ]
