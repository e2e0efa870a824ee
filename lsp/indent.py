"""The indentation of an item is the file's: its unit, and no more at the start than the cursor's line lacks."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

LINES_READ = 400
_BLOCK = re.compile(r"[:{\[]\s*(?:#.*|//.*)?$|(?:\bthen|\bdo)$")
_OPENS = re.compile(r"[:{(\[]\s*(?:#.*|//.*)?$|(?:\bthen|\bdo|=>)$")


def unit_of(text: str) -> str:
    """What one more level of indentation is in ``text``: a tab, or so many spaces; empty when it doesn't tell."""
    lines = [line for line in text.split("\n")[-LINES_READ:] if line]
    if sum(line.startswith("\t") for line in lines) > sum(line.startswith("  ") for line in lines):
        return "\t"
    steps = Counter(
        step
        for above, line in pairwise(line for line in lines if line.strip())
        if _BLOCK.search(above) and 2 <= (step := _width(line) - _width(above)) <= 8 and not line.startswith("\t")
    )
    return " " * steps.most_common(1)[0][0] if steps else ""


def reindent(text: str, prefix: str, suffix: str) -> str:
    """``text`` as it is to be inserted between ``prefix`` and ``suffix``."""
    unit = unit_of(prefix + suffix)
    return _first_line(_later_lines(text, prefix, unit), prefix, unit or "    ")


def _first_line(text: str, prefix: str, unit: str) -> str:
    """Without white space that stands before the cursor already."""
    above, _, head = prefix.rpartition("\n")
    lead = text[: len(text) - len(text.lstrip(" \t"))]
    if not lead or not text[len(lead) :] or text[len(lead)] == "\n":
        return text
    if head.strip():
        return text[len(lead) :] if head[-1:].isspace() else text
    last = next((line for line in reversed(above.split("\n")) if line.strip()), "")
    deepest = _width(last, unit) + (_width(unit, unit) if _OPENS.search(last.rstrip()) else 0)
    if not head or _width(head + lead, unit) <= deepest or _width(lead, unit) not in (_width(head, unit), deepest):
        return text
    there = max(deepest - _width(head, unit), 0)
    return (unit if there else "") + text[len(lead) :] if unit == "\t" else " " * there + text[len(lead) :]


def _later_lines(text: str, prefix: str, unit: str) -> str:
    if not unit or "\n" not in text:
        return text
    first, *others = text.split("\n")
    head = prefix.rpartition("\n")[2] + first
    base = _margin(head)
    theirs = _their_unit([head, *others], unit)
    if theirs == unit:
        return text
    return "\n".join([first, *(_in_unit(line, base, theirs, unit) for line in others)])


def _their_unit(lines: list[str], unit: str) -> str:
    """The unit of the item's own lines. Only what stands further in than a line that opens a block tells it: arguments
    hang as people like."""
    written = [line for line in lines if line.strip()]
    if unit == "\t":
        spaces = [_width(line) for line in written[1:] if line.startswith(" ")]
        deepest = [n for n in spaces if n]
        return " " * (2 if any(n % 4 for n in deepest) else 4) if deepest else unit
    if any(line.startswith("\t") for line in written[1:]):
        return "\t"
    steps = {
        step for above, line in pairwise(written) if _BLOCK.search(above) and (step := _width(line) - _width(above)) > 1
    }
    return " " * steps.pop() if len(steps) == 1 else unit


def _in_unit(line: str, base: str, theirs: str, unit: str) -> str:
    margin = _margin(line)
    rest = line[len(margin) :]
    if not rest:
        return ""
    if theirs == "\t" or unit == "\t":  # another kind of white space: all of it is made anew
        levels, spaces = divmod(_width(margin, theirs), _width(theirs, theirs))
        return unit * levels + " " * spaces + rest
    deeper = len(margin) - len(base)
    levels, spaces = divmod(deeper, len(theirs))
    if deeper <= 0:
        return line
    return base + unit * levels + " " * spaces + rest


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _width(line: str, unit: str = "    ") -> int:
    """Columns of white space at the start; a tab is as wide as a unit of spaces, four where the unit is a tab."""
    return len(_margin(line).expandtabs(4 if unit == "\t" else max(len(unit), 1)))
