"""A change of one line as a rule, and where else it applies: the other uses of a name, the other calls of a kind."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lsp.edit.hunks import Hunk

LEAST_NAME, LEAST_TEXT = 3, 6
"""Characters of what is replaced: a name, or anything else. Less stands everywhere."""
MOST_PLACES = 50
LONGEST_LINE = 1000
"""Characters; a longer one is no line that somebody writes."""
_WORD = re.compile(r"\w")
_CALL_BEFORE, _CALL_AFTER = re.compile(r"[\w.]+\([^()]*$"), re.compile(r"[^()]*\)")


@dataclass(frozen=True)
class Substitution:
    """``old`` became ``new``, both whole words at their ends."""

    old: str
    new: str

    def apply(self, line: str) -> str:
        return self._pattern.sub(lambda _: self.new, line)

    @property
    def _pattern(self) -> re.Pattern[str]:
        before = r"(?<!\w)" if _WORD.match(self.old[0]) else ""
        after = r"(?!\w)" if _WORD.match(self.old[-1]) else ""
        return re.compile(before + re.escape(self.old) + after)


def substitution_of(old: str, new: str) -> Substitution | None:
    """What was replaced in a line, if it is more than a chance: a name, a call, or a longer text."""
    if max(len(old), len(new)) > LONGEST_LINE:
        return None
    start = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    rest = min(len(old), len(new)) - start
    end = next((n for n in range(rest) if old[-1 - n] != new[-1 - n]), rest)
    while start and _WORD.match(old[start - 1]) and _is_inside(old, new, start):
        start -= 1
    while end and _WORD.match(old[len(old) - end]) and _is_inside_end(old, new, end):
        end -= 1
    before, replaced, after = old[:start], old[start : len(old) - end], old[len(old) - end :]
    if not replaced or not _WORD.search(replaced):
        call, rest_of_call = _CALL_BEFORE.search(before), _CALL_AFTER.match(after)
        if call is None or rest_of_call is None:
            return None
        start, end = call.start(), len(after) - rest_of_call.end()
        replaced = old[start : len(old) - end]
    least = LEAST_NAME if replaced.isidentifier() else LEAST_TEXT
    if len(replaced) < least:
        return None
    return Substitution(replaced, new[start : len(new) - end])


def _is_inside(old: str, new: str, start: int) -> bool:
    """Whether a word of either goes on over this place."""
    return any(start < len(text) and _WORD.match(text[start]) for text in (old, new))


def _is_inside_end(old: str, new: str, end: int) -> bool:
    return any(end < len(text) and _WORD.match(text[-1 - end]) for text in (old, new))


def substitutions(before: Sequence[str], hunks: Sequence[Hunk]) -> list[tuple[int, Substitution]]:
    """(the line it was made in, as counted now; what was replaced) for each line that took the place of another."""
    found, moved = [], 0
    for hunk in hunks:
        old = before[hunk.start : hunk.end]
        if len(old) == len(hunk.lines):
            for offset, (was, now) in enumerate(zip(old, hunk.lines, strict=True)):
                if substitution := substitution_of(was, now):
                    found.append((hunk.start + moved + offset, substitution))
        moved += len(hunk.lines) - (hunk.end - hunk.start)
    return found


def places(lines: Sequence[str], rule: Substitution, own: Collection[int]) -> list[Hunk]:
    """The lines that the rule changes, without the ``own`` ones, which were changed by hand."""
    found = []
    for row, line in enumerate(lines):
        if row not in own and rule.old in line and (changed := rule.apply(line)) != line:
            found.append(Hunk(row, row + 1, (changed,)))
            if len(found) > MOST_PLACES:
                return []  # a word of the language, not a name
    return found
