"""What changed between two versions of a text, as excerpts of the new one."""

from __future__ import annotations

from difflib import SequenceMatcher

from prompts.text import SourceText

AROUND = 2
"""Lines kept on both sides of a change: they say where it belongs, and that something was deleted there."""
COMPARED = 600
"""A longer stretch from the first to the last change counts as one: to compare it line by line takes too long."""


def changed_regions(before: SourceText, now: SourceText) -> str:
    """The parts of ``now`` that differ from ``before``, each with the lines around it, one after the other.

    Whole lines, each with its end; empty when the two are equal, or nothing is left of the text.
    """
    old, new = before.lines, now.lines
    if old == new:
        return ""
    limit = min(len(old), len(new))
    top = next((i for i in range(limit) if old[i] != new[i]), limit)
    below = next((i for i in range(limit - top) if old[-1 - i] != new[-1 - i]), limit - top)
    old, middle = old[top : len(old) - below], new[top : len(new) - below]
    spans = [(top, top + len(middle))]
    if max(len(old), len(middle)) <= COMPARED:
        matcher = SequenceMatcher(None, old, middle, autojunk=False)
        spans = [(top + j1, top + j2) for tag, _, _, j1, j2 in matcher.get_opcodes() if tag != "equal"]
    regions: list[tuple[int, int]] = []
    for first, last in spans:
        first, last = max(first - AROUND, 0), min(last + AROUND, len(new))
        if regions and first <= regions[-1][1]:
            first = regions.pop()[0]
        regions.append((first, last))
    end = len(new) - 1 if not new[-1] else len(new)  # a text that ends its last line has no line after it
    return "\n".join("".join(line + "\n" for line in new[first : min(last, end)]) for first, last in regions).lstrip(
        "\n"
    )
