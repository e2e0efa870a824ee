"""How much of an item goes into the document: as much as leaves it no less balanced and no less parseable than it was.

Only the region around the cursor is looked at, so that the cost doesn't follow the file. What counts is the difference
between before and after: a document that doesn't parse as it is may stay so.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from tree_sitter import Node, Parser

from lsp.balance import unbalanced
from lsp.items import Item
from lsp.languages import parser_of

NEAR_LINES = 40
"""Above and below the cursor, at least."""
LINES = 150
"""Below the cursor, at most."""
LONGEST_REGION = 60_000
"""Characters; in a longer one (a class of two thousand lines, minified code) an item is taken as it is."""
MOST_PARSED = 10
"""Ends of an item that are tried with the grammar."""
MOST_BETTER = 4
"""The same, once one is found that leaves the faults that were there."""
MOST_BALANCED = 60
CLOSERS = frozenset(")]}\"'`>;")
_TOKEN = re.compile(r"\w+|[^\w\s]")
LEAST = 2
"""Characters: less of an item isn't worth showing."""


def fit(text: str, prefix: str, suffix: str, language: str) -> Item | None:
    """The longest beginning of ``text`` that fits between ``prefix`` and ``suffix``, and how many closing brackets and
    quotes right after the cursor it takes the place of. None when nothing fits. All have LF line ends."""
    before, after = _region(prefix, suffix)
    if len(before) + len(after) + len(text) > LONGEST_REGION:
        return Item(text)
    parser = parser_of(language)
    budget = unbalanced(before + after, language)
    faults: int | None = None
    fitting: Item | None = None
    is_cut = False
    parsed = 0
    for item in itertools.islice(_candidates(text, after, language), MOST_BALANCED):
        applied = before + item.text + after[item.replaces :]
        if unbalanced(applied, language) > budget:
            continue
        if parser is None:
            return _shortest(item, after)
        if faults is None:
            faults = count_faults(parser, before + after)
        if item.text != text and not is_cut:
            # A line that was only begun is a fault by itself: what is left of an item must have ended it.
            is_cut = True
            faults = min(faults, count_faults(parser, _without_line(before, after)))
        found = count_faults(parser, applied)
        if found < faults or found == 0:
            return _shortest(item, after)
        if found == faults and fitting is None:
            fitting = item
        parsed += 1
        if parsed >= (MOST_PARSED if fitting is None else MOST_BETTER):
            break
    return _shortest(fitting, after) if fitting else None


def _without_line(before: str, after: str) -> str:
    """The region without the line of the cursor."""
    return before[: before.rfind("\n") + 1] + after.partition("\n")[2]


def _shortest(item: Item, after: str) -> Item:
    """The same without closers at its end that would be replaced by themselves, unless blanks stand before them."""
    text, replaces = item.text, item.replaces
    while replaces and text[-1:] == after[replaces - 1]:
        text, replaces = text[:-1], replaces - 1
    return Item(text, replaces) if text == text.rstrip() else item


def _candidates(text: str, after: str, language: str) -> Iterator[Item]:
    """Beginnings of the text, the longest first: whole lines, then words of the first line; each first with the text
    after the cursor as it is, then in the place of closers."""
    closers = len(list(itertools.takewhile(lambda c: c in CLOSERS, after)))
    lines = text.split("\n")
    ends = ["\n".join(lines[:count]).rstrip() for count in range(len(lines), 0, -1)]
    words = [lines[0][: match.end()] for match in _TOKEN.finditer(lines[0])]
    for end in dict.fromkeys([*ends, *reversed(words)]):
        # The grammar takes a block without a body; Python doesn't.
        headless = language == "python" and end.endswith(":")
        if end == text or (len(end.strip()) >= LEAST and not headless):
            # An item that ends with a closer means the one that is there, the last of them if it can.
            same = [n for n in range(closers, 0, -1) if end[-1:] == after[n - 1]]
            for replaces in (*same, *(n for n in range(closers + 1) if n not in same)):
                yield Item(end, replaces)


def count_faults(parser: Parser, text: str) -> int:
    """Places where the text is not what the grammar asks for."""
    root = parser.parse((text + "\n").encode("utf-8", "replace")).root_node
    faults, nodes = 0, [root]
    while nodes:
        node: Node = nodes.pop()
        if node.is_error or node.is_missing:
            faults += 1
        elif node.has_error:
            nodes += node.children
    return faults


def _region(prefix: str, suffix: str) -> tuple[str, str]:
    """What is looked at: from a line that begins a declaration of its own (else from where the prompt begins) to
    another one, not too near to the cursor."""
    above, below = prefix.split("\n"), suffix.split("\n")
    start = next((n for n in range(len(above) - 1 - NEAR_LINES, 0, -1) if _begins(above[n])), 0)
    end = next((n for n in range(NEAR_LINES, min(len(below), LINES)) if _begins(below[n])), LINES)
    return "\n".join(above[start:]), "\n".join(below[:end])


def _begins(line: str) -> bool:
    """Whether a declaration of its own seems to begin here: a line that isn't indented and closes nothing."""
    return line[:1].isalpha() or line[:1] in "@#_/"
