"""Which places of the held-out text an evaluation asks for: the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from models.files import File
from models.windows import line_starts

LINES_BEFORE = 20
CHARACTERS_LEFT = 5
GRAM, TIMES = 8, 3
"""A continuation loops when some run of ``GRAM`` tokens stands ``TIMES`` times in it."""


@dataclass(frozen=True)
class Span:
    """The rest of a line to be completed: everything before it, the rest itself, everything after it."""

    path: str
    prefix: str
    middle: str
    suffix: str


def rest_of_line_spans(files: list[File], count: int, seed: int) -> list[Span]:
    """``count`` spans on lines that are neither blank nor comments, with at least 20 lines before.

    Half of them begin at the line's first non-blank character, half at a uniformly random column with at least 5
    characters left. Files are drawn by their number of lines.
    """
    rng = random.Random(seed)
    starts = [line_starts(file.text) for file in files]
    weights = [max(0, len(s) - LINES_BEFORE) for s in starts]
    spans: list[Span] = []
    while len(spans) < count:
        (which,) = rng.choices(range(len(files)), weights)
        text = files[which].text
        begin = starts[which][rng.randrange(LINES_BEFORE, len(starts[which]))]
        end = text.find("\n", begin)
        end = len(text) if end == -1 else end
        line = text[begin:end]
        first = len(line) - len(line.lstrip())
        if not line.strip() or line[first] == "#":
            continue
        if len(spans) % 2 == 0:
            column = first
        elif len(line.rstrip()) - CHARACTERS_LEFT < first:
            continue
        else:
            column = rng.randint(first, len(line.rstrip()) - CHARACTERS_LEFT)
        at = begin + column
        spans.append(Span(files[which].path, text[:at], text[at:end], text[end:]))
    return spans


def cursors(files: list[File], count: int, seed: int) -> list[Span]:
    """Line starts with at least 20 lines before, where a continuation begins; the middle is the whole line."""
    spans = []
    for span in rest_of_line_spans(files, count, seed):
        at = span.prefix.rfind("\n") + 1
        spans.append(Span(span.path, span.prefix[:at], span.prefix[at:] + span.middle, span.suffix))
    return spans


def repeats(tokens: list[int], size: int = GRAM, times: int = TIMES) -> bool:
    """Whether some run of ``size`` tokens stands ``times`` times in ``tokens``."""
    seen: dict[tuple[int, ...], int] = {}
    for i in range(len(tokens) - size + 1):
        gram = tuple(tokens[i : i + size])
        seen[gram] = seen.get(gram, 0) + 1
        if seen[gram] >= times:
            return True
    return False
