"""The next word or line of an item, for editors that accept it in parts."""

from __future__ import annotations

import unicodedata
from typing import Literal

from lsp.triggers import is_word

Part = Literal["word", "line"]

_JOINERS = frozenset("\u200d\ufe0e\ufe0f")


def next_part(text: str, part: Part) -> str:
    """The beginning of ``text`` (LF line ends) to accept next; all of it when nothing else is left. Never splits a
    character that is made of several code points.

    ``word``: white space, then one name or number, or one run of punctuation. ``line``: up to the end of the line; line
    breaks at the start come with the line they lead to.
    """
    at = len(text) - len(text.lstrip())
    if part == "line":
        end = text.find("\n", at)
        return text if end < 0 else text[:end]
    if at == len(text):
        return text
    kind, at = is_word(text[at]), at + 1
    while at < len(text) and (
        _continues(text[at - 1], text[at]) or (is_word(text[at]) is kind and not text[at].isspace())
    ):
        at += 1
    return text[:at]


def _continues(before: str, character: str) -> bool:
    """Whether ``character`` belongs to the one before it: a combining mark, or a part of an emoji."""
    return unicodedata.category(character).startswith("M") or character in _JOINERS or before == "\u200d"


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def after_utf16(text: str, units: int) -> str | None:
    """``text`` without its first ``units`` UTF-16 units; None where that is no place in it."""
    data = text.encode("utf-16-le", "surrogatepass")
    if not 0 <= 2 * units <= len(data):
        return None
    try:
        data[: 2 * units].decode("utf-16-le")
        return data[2 * units :].decode("utf-16-le")
    except UnicodeDecodeError:
        return None  # inside a character
