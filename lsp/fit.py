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
LONGEST_REGION = 30_000
"""Characters; in a longer one (a class of a thousand lines, minified code) an item is taken as it is."""
MOST_PARSED = 6
"""Ends of an item that are tried with the grammar."""
MOST_BETTER = 4
"""The same, once one is found that leaves the faults that were there."""
MOST_BALANCED = 60
CLOSERS = frozenset(")]}\"'`>;")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_DECLARATION = re.compile(r"(?:async def|def|class)\b|@\w")
_UNINDENTED = re.compile(r"[A-Za-z@#_/]")
"""A line where something of its own seems to begin. Python's strings have lines of prose that aren't indented."""
LEAST = 2
"""Characters: less of an item isn't worth showing."""


def fit(text: str, prefix: str, suffix: str, language: str) -> Item | None:
    """The longest beginning of ``text`` that fits between ``prefix`` and ``suffix``, and how many closing brackets and
    quotes right after the cursor it takes the place of. None when nothing fits. All have LF line ends."""
    before, after = _region(prefix, suffix, language)
    if len(before) + len(after) + len(text) > LONGEST_REGION:
        return Item(text)
    open_before = unbalanced(before + after, language)
    balanced = (
        item
        for item in itertools.islice(_candidates(text, after, language), MOST_BALANCED)
        if unbalanced(before + item.text + after[item.replaces :], language) <= open_before
    )
    parser = parser_of(language)
    chosen = next(balanced, None) if parser is None else _parseable(balanced, text, before, after, parser)
    return _shortest(chosen, after) if chosen else None


def _parseable(items: Iterator[Item], text: str, before: str, after: str, parser: Parser) -> Item | None:
    """The first of ``items`` that leaves no more faults than there were.

    Among faults of something else the grammar's count says little: each error may hide others. Then the whole text is
    good enough, unless a beginning of it leaves no fault at all.
    """
    faults = count_faults(parser, before + after)
    others = count_faults(parser, _without_line(before, after)) if faults else 0
    whole: Item | None = None
    for number, item in enumerate(items):
        if number >= (MOST_PARSED if whole is None else MOST_BETTER):
            break
        found = count_faults(parser, before + item.text + after[item.replaces :])
        if found == 0:
            return item
        if item.text == text:
            if whole is None and (others or found <= faults):
                whole = item
        elif others and whole is None:
            return item  # the whole isn't balanced, this is
    return whole


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


def _region(prefix: str, suffix: str, language: str) -> tuple[str, str]:
    """What is looked at: from a line that begins a declaration of its own (else from where the prompt begins) to
    another one, not too near to the cursor."""
    above, below = prefix.split("\n"), suffix.split("\n")
    begins = (_DECLARATION if language == "python" else _UNINDENTED).match
    start = next((n for n in range(len(above) - 1 - NEAR_LINES, 0, -1) if begins(above[n])), 0)
    end = next((n for n in range(NEAR_LINES, min(len(below), LINES)) if begins(below[n])), LINES)
    return "\n".join(above[start:]), "\n".join(below[:end])
