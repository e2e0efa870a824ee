"""Columns of a line: the editor's units (utf-8, utf-16 or utf-32) to code points and back.

Everything inside counts code points; an editor counts code units of the encoding that was negotiated. A position
inside a character (the second half of a surrogate pair, a continuation byte) means the start of that character, one
past the end of the line means its end.
"""

from __future__ import annotations

import re
from typing import Literal

Encoding = Literal["utf-8", "utf-16", "utf-32"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def join_surrogates(text: str) -> str:
    """The text with every high surrogate that is followed by a low one turned into the character they spell.

    An editor may send the halves of an emoji in two changes. Lone surrogates stay.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def column_of(line: str, units: int, encoding: Encoding) -> int:
    """The column in code points of an editor's column, clamped to the line and to the start of a character.

    line: without its line end, surrogate halves already joined.
    """
    if units <= 0:
        return 0
    if encoding == "utf-32" or line.isascii():
        return min(units, len(line))
    # No character is shorter than one unit, so what lies beyond the first `units` characters can't matter.
    head = line[:units]
    if encoding == "utf-16":
        data = head.encode("utf-16-le", "surrogatepass")
        if len(data) <= 2 * units:
            return len(head)
        cut = 2 * units
        if 0xD8 <= data[cut - 1] <= 0xDB and 0xDC <= data[cut + 1] <= 0xDF:
            cut -= 2
        return len(data[:cut].decode("utf-16-le", "surrogatepass"))
    data = head.encode("utf-8", "surrogatepass")
    if len(data) <= units:
        return len(head)
    cut = units
    while data[cut] & 0xC0 == 0x80:
        cut -= 1
    return len(data[:cut].decode("utf-8", "surrogatepass"))


def units_of(line: str, column: int, encoding: Encoding) -> int:
    """The editor's column of a column in code points (the inverse of ``column_of`` on whole characters)."""
    head = line[: max(column, 0)]
    if encoding == "utf-32" or head.isascii():
        return len(head)
    if encoding == "utf-16":
        return len(head.encode("utf-16-le", "surrogatepass")) // 2
    return len(head.encode("utf-8", "surrogatepass"))
