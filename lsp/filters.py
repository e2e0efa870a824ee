"""What is cut from a generated text before it is shown. Each rule has the name that a dropped item is reported with.

All texts have LF line ends. prefix and suffix are the current document before and after the cursor, as far as they
were in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MARKER = re.compile(r"<\|[a-zA-Z0-9_]{1,40}\|>|</?(?:think|tool_call|tool_response)>")
_DIFF_HEADER = re.compile(r"(?:diff --git |--- a/|\+\+\+ b/|@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)")
_CLOSERS = frozenset(")]}\"'`,:;>")
_PAIRS = {")": "(", "]": "[", "}": "{"}
_TELLING = 4
"""A line with fewer letters and digits (``)``, ``else:``) may well stand twice; one with more repeats the suffix."""


@dataclass(frozen=True)
class Surroundings:
    """Where an item goes. paths: the files that the prompt showed by their path."""

    prefix: str
    suffix: str
    paths: Sequence[str] = ()

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


def finish_item(text: str, around: Surroundings) -> str | Filtered:
    """The text to show, or why there is none. It never ends with blanks."""
    text = text.rstrip()
    if not text:
        return Filtered("empty")
    for name, rule in RULES:
        text = rule(text, around).rstrip()
        if not text:
            return Filtered(f"filtered:{name}")
    return text


def cut_markers(text: str, around: Surroundings) -> str:
    """End before a special token's name, unless the document itself writes about that token."""
    for match in _MARKER.finditer(text):
        if match.group() not in around.prefix and match.group() not in around.suffix:
            return text[: match.start()]
    return text


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
    ("path_line", cut_path_lines),
    ("repeats_line", cut_rest_of_line),
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
