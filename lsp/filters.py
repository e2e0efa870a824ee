"""What is cut from a generated text before it is shown. Each rule has the name that a dropped item is reported with.

All texts have LF line ends. prefix and suffix are the current document before and after the cursor, as far as they
were in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lsp.fit import fit
from lsp.indent import reindent
from lsp.items import Item

_MARKER = re.compile(r"<\|[a-zA-Z0-9_]{1,40}\|>|</?(?:think|tool_call|tool_response)>")
_DIFF_HEADER = re.compile(r"(?:diff --git |--- a/|\+\+\+ b/|@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_PROSE = re.compile(
    r"(?:Sure|Certainly|Of course|Absolutely)[,!.]|Here(?:'s| is| are) (?:the|an?|your|how)\b[^\n]*:\s*(?:\n|$)"
    r"|I(?:'m| am) sorry\b|As an AI\b|I (?:can|will|'ll) (?:help|complete|write)\b"
)
_CLOSERS = frozenset(")]}\"'`,:;>")
_PAIRS = {")": "(", "]": "[", "}": "{"}
_TELLING = 4
"""A line with fewer letters and digits (``)``, ``else:``) may well stand twice; one with more repeats the suffix."""


@dataclass(frozen=True)
class Surroundings:
    """Where an item goes. paths: the files that the prompt showed by their path. language: as ``languages.py`` names
    it, empty when it isn't known."""

    prefix: str
    suffix: str
    paths: Sequence[str] = ()
    language: str = ""

    @property
    def line_head(self) -> str:
        return self.prefix[self.prefix.rfind("\n") + 1 :]

    @property
    def line_rest(self) -> str:
        return self.suffix.partition("\n")[0]


@dataclass(frozen=True)
class Filtered:
    """Nothing is left to show. reason: ``empty`` or ``filtered:<rule>``."""

    reason: str


def finish_item(text: str, around: Surroundings) -> Item | Filtered:
    """The item to show, or why there is none. It never ends with blanks."""
    text = text.rstrip()
    if not text:
        return Filtered("empty")
    for name, rule in RULES:
        text = rule(text, around).rstrip()
        if not text:
            return Filtered(f"filtered:{name}")
    item = fit(text, around.prefix, around.suffix, around.language)
    if item is None:
        return Filtered("filtered:syntax")
    return item if item.text else Filtered("filtered:repeats_line")


def cut_markers(text: str, around: Surroundings) -> str:
    """End before a special token's name, unless the document itself writes about that token."""
    for match in _MARKER.finditer(text):
        if match.group() not in around.prefix and match.group() not in around.suffix:
            return text[: match.start()]
    return text


def cut_fences(text: str, around: Surroundings) -> str:
    """The code inside a fence, or what comes before one, where the document isn't one that has fences."""
    if around.language == "markdown" or _FENCE.search(around.prefix) or _FENCE.search(around.suffix):
        return text
    if match := _FENCE.match(text.lstrip()):
        text = text.lstrip()[match.end() :].removeprefix("\n")
    return text[: match.start()] if (match := _FENCE.search(text)) else text


def cut_prose(text: str, around: Surroundings) -> str:
    """Nothing of an answer that talks to the user instead of going on with the document."""
    starts_line = not around.line_head.strip()
    return "" if starts_line and around.language != "markdown" and _PROSE.match(text.lstrip()) else text


def indent(text: str, around: Surroundings) -> str:
    return reindent(text, around.prefix, around.suffix)


def cut_path_lines(text: str, around: Surroundings) -> str:
    """End before a line that is a path of the prompt or a diff's header, unless the document has diff headers."""
    is_diff = any(_DIFF_HEADER.match(line) for part in (around.prefix, around.suffix) for line in part.split("\n"))
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if index == 0 and around.line_head:
            continue
        bare = line.strip().lstrip("#/-").strip()
        if bare in around.paths or (_DIFF_HEADER.match(line) and not is_diff):
            return "\n".join(lines[:index])
    return text


def cut_rest_of_line(text: str, around: Surroundings) -> str:
    """Drop at the end of a one-line item what already stands after the cursor, such as an auto-inserted ``)``."""
    rest = around.line_rest.rstrip()
    if "\n" in text or not rest.strip():
        return text
    for length in range(min(len(rest), len(text)), 0, -1):
        head = rest[:length]
        if not text.endswith(head) or not (length == len(rest) or set(head) <= _CLOSERS):
            continue
        shorter = text[:-length]
        if shorter[-1:].isspace() and set(head) <= _CLOSERS:
            return text  # the blanks are to stay, so what follows the cursor is replaced
        if _unclosed(shorter) <= _unclosed(text) and not any(shorter.count(quote) % 2 for quote in "\"'"):
            return shorter
    return text


def cut_repeated_lines(text: str, around: Surroundings) -> str:
    """End before the lines that follow the cursor are said again."""
    following = [line.rstrip() for line in around.suffix.split("\n")[1:]]
    while following and not following[0]:
        following.pop(0)
    if not following:
        return text
    lines = (around.line_head + text).split("\n")
    for index, line in enumerate(lines):
        if line.rstrip() != following[0]:
            continue
        tail = [later.rstrip() for later in lines[index:]]
        goes_on = tail[:-1] == following[: len(tail) - 1] and [*following, ""][len(tail) - 1].startswith(tail[-1])
        if goes_on or sum(character.isalnum() for character in line) >= _TELLING:
            kept = "\n".join(lines[:index])
            return kept[len(around.line_head) :] if index else ""
    return text


RULES: tuple[tuple[str, Callable[[str, Surroundings], str]], ...] = (
    ("special_token", cut_markers),
    ("fence", cut_fences),
    ("prose", cut_prose),
    ("path_line", cut_path_lines),
    ("repeats_line", cut_rest_of_line),
    ("indentation", indent),
    ("repeats_suffix", cut_repeated_lines),
)


def _unclosed(text: str) -> int:
    """Brackets that the text opens and doesn't close."""
    stack: list[str] = []
    for character in text:
        if character in "([{":
            stack.append(character)
        elif character in _PAIRS and stack and stack[-1] == _PAIRS[character]:
            stack.pop()
    return len(stack)
