"""What an edit changes, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

LARGE = 100_000
"""Lines of the one text times lines of the other."""


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
    start = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    old, new, first = old[start:], new[start:], first + start
    # What takes long is lines that stand everywhere: in a long text they mean nothing.
    blocks = SequenceMatcher(None, old, new, autojunk=len(old) * len(new) > LARGE).get_opcodes()
    if not whole:
        while blocks and blocks[-1][0] != "equal":
            blocks.pop()
    return [
        Hunk(first + start, first + end, tuple(new[begin:stop]))
        for kind, start, end, begin, stop in blocks
        if kind != "equal"
    ]
