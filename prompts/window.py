"""The part of a prompt at the cursor: the current file's text after the cursor, then the text before it.

In this order typing only appends. Sizes are UTF-8 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prompts.segments import Segment
from prompts.text import Cursor, SourceFile, SourceText, byte_length, sendable

SUFFIX_SHARE = 0.25
"""Of the current file's window, at most, for the text after the cursor."""
NEAR_LINES = 4
"""The far part of the prefix ends at least so many lines above the cursor ..."""
BORDER_LINES = 8
"""... at every so manyth line of the window, so that the border rests while a few lines are typed."""


@dataclass
class PrefixWindow:
    """Where the window on the text before the cursor starts, remembered from request to request.

    A window that slid with every line would change the prompt's beginning each time and nothing after it could be
    reused; so the edge rests while the cursor stays in the middle half of the file's window.
    """

    first_line: int = 0

    def reset(self) -> None:
        self.first_line = 0

    def lines_replaced(self, top: int, removed: int, added: int) -> None:
        """Keep the edge at the same text when lines above it come or go."""
        if top + removed <= self.first_line:
            self.first_line += added - removed
        elif top < self.first_line:
            self.first_line = top

    def place(self, text: SourceText, cursor: Cursor, window: int, room: int) -> int:
        """The first line of the prefix. window: bytes for the current file; room: how many the prefix may have."""
        first = min(self.first_line, cursor.line)
        size = _bytes_between(text, first, cursor, limit=room)
        if size > room or (first > 0 and size < window // 4):
            first = _first_line_within(text, cursor, room)
            if first > 0:
                first = _first_line_within(text, cursor, min(room, window // 2))
        self.first_line = first
        return first


def current_segments(current: SourceFile, cursor: Cursor, size: int, window: PrefixWindow) -> list[Segment]:
    """The suffix and prefix segments for ``cursor``, of ``size`` bytes at most. window: of this document, updated.

    Where the whole file fits, they are the document and nothing else.
    """
    cursor = current.text.clamp(cursor)
    text = current.text
    suffix = _suffix(text, cursor, int(size * SUFFIX_SHARE))
    room = size - byte_length(suffix)
    first = window.place(text, cursor, size, room)
    segments = [Segment("suffix", suffix, source="current", path=current.path, checkpoint=True)]
    border = _border(text, first, cursor)
    head = text.lines[cursor.line][: cursor.column]
    if first == cursor.line:
        head = _end_of_long_line(head, room)
    # Typing may change the last token that is there, and then all from the last checkpoint on is computed again: the
    # cursor's line by itself makes that a few tokens.
    parts = [_lines(text, first, border), _lines(text, border, cursor.line), head]
    segments += [Segment("prefix", part, source="current", checkpoint=True) for part in parts if part]
    if len(segments) == 1:
        segments.append(Segment("prefix", "", source="current"))
    return [replace(segment, text=sendable(segment.text)) for segment in segments]


def _lines(text: SourceText, first: int, last: int) -> str:
    return "".join(line + "\n" for line in text.lines[first:last])


def _border(text: SourceText, first: int, cursor: Cursor) -> int:
    """The line at which the far part of the prefix ends: the start of a line with text, so that no token spans it."""
    border = first + max(cursor.line - NEAR_LINES - first, 0) // BORDER_LINES * BORDER_LINES
    while border > first and not text.lines[border].strip():
        border -= 1
    return border


def _suffix(text: SourceText, cursor: Cursor, room: int) -> str:
    """The text after the cursor, cut after a whole line; when the cursor's own line is too long, cut in it."""
    rest = text.lines[cursor.line][cursor.column :]
    size = byte_length(rest)
    if size > room:
        return _cut_bytes(rest, room)
    last = cursor.line + 1
    while last < len(text.lines) and (size := size + 1 + byte_length(text.lines[last])) <= room:
        last += 1
    return "\n".join((rest, *text.lines[cursor.line + 1 : last]))


def _end_of_long_line(head: str, room: int) -> str:
    """The end of a line longer than its room; the cut moves in steps of half the room, so that typing appends."""
    if byte_length(head) <= room:
        return head
    widest = max(1, byte_length(head) // len(head) + 1)
    step = max(room // (2 * widest), 1)
    start = max(len(head) - step, 0) // step * step
    return head[start:]


def _cut_bytes(text: str, room: int) -> str:
    return sendable(text[: max(room, 0)]).encode()[: max(room, 0)].decode("utf-8", "ignore")


def _bytes_between(text: SourceText, first: int, cursor: Cursor, limit: int) -> int:
    """Bytes from the start of line ``first`` to the cursor; counting stops once they exceed ``limit``."""
    size = byte_length(text.lines[cursor.line][: cursor.column])
    for line in range(cursor.line - 1, first - 1, -1):
        if size > limit:
            break
        size += byte_length(text.lines[line]) + 1
    return size


def _first_line_within(text: SourceText, cursor: Cursor, room: int) -> int:
    """The earliest line from which the text up to the cursor fits in ``room``, the cursor's line at the latest."""
    size = byte_length(text.lines[cursor.line][: cursor.column])
    line = cursor.line
    while line > 0 and (size := size + byte_length(text.lines[line - 1]) + 1) <= room:
        line -= 1
    return line
