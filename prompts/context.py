"""Which text of a workspace goes into a completion's prompt, in which order, and where a state is worth keeping.

Stable first, volatile last: the other open files, least recently used first, then the current file's text after the
cursor, then the text before it, so that typing only appends. Sizes are UTF-8 bytes, translated from a budget in
tokens by a ratio that ``prompts.budget`` measures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prompts.segments import Segment
from prompts.text import Cursor, SourceFile, SourceText, byte_length

SHARE_STEPS = 8
"""The budget is dealt out in eighths, so that a growing file moves the others' share rarely."""
CURRENT_STEPS = 5
"""Eighths the current file may take from the other files when there is not enough for all."""
SUFFIX_SHARE = 0.25
"""Of the current file's window, at most, for the text after the cursor."""
NEAR_LINES = 4
"""The far part of the prefix ends at least so many lines above the cursor ..."""
BORDER_LINES = 8
"""... at every so manyth line of the window, so that the border rests while a few lines are typed."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class NoPromptBudget(ValueError):  # noqa: N818
    """There are no tokens to build a prompt with."""


@dataclass(frozen=True)
class Budget:
    """tokens: what the whole prompt may have. bytes_per_token: of UTF-8 text, measured or assumed."""

    tokens: int
    bytes_per_token: float = 3.0

    @property
    def bytes(self) -> int:
        return int(self.tokens * self.bytes_per_token)


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


def completion_segments(
    current: SourceFile,
    cursor: Cursor,
    others: Sequence[SourceFile] = (),
    budget: Budget | None = None,
    *,
    repository: str | None = None,
    window: PrefixWindow | None = None,
) -> list[Segment]:
    """The segments of a fill-in-the-middle prompt for ``cursor`` in ``current``.

    others: other open files, least recently used first. budget: None takes everything. repository: its name, shown
    before the other files. window: of this document, from earlier requests; it is updated.
    Without others, the suffix and prefix segments together are the current document and nothing else.
    Raises NoPromptBudget when there is not a single token.
    """
    cursor = current.text.clamp(cursor)
    window = window if window is not None else PrefixWindow()
    if budget is None:
        step = sum(_bytes_of(file.text) + byte_length(file.path or "") + 4 for file in (current, *others))
    else:
        if budget.tokens <= 0:
            raise NoPromptBudget(
                f"the prompt's budget is {budget.tokens} tokens: the model's context is too short for the tokens "
                "reserved for the answer; take a model with a longer context, or set fewer (max_tokens) in the editor"
            )
        step = max(budget.bytes // SHARE_STEPS, 1)
    total = step * SHARE_STEPS
    chosen, used = _choose_others(others, total - _share_of_current(current.text, total, step))
    segments = [
        Segment("file", _clean(str(file.text)), source="open file", path=file.path, checkpoint=True) for file in chosen
    ]
    if segments and repository:
        segments.insert(0, Segment("repo", _clean(repository), source="repository"))
    room = total - _round_up(used, step) if used else total
    return segments + _current_segments(current, cursor, room, window)


def _current_segments(current: SourceFile, cursor: Cursor, size: int, window: PrefixWindow) -> list[Segment]:
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
    return [replace(segment, text=_clean(segment.text)) for segment in segments]


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
    return _clean(text[: max(room, 0)]).encode()[: max(room, 0)].decode("utf-8", "ignore")


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


def _bytes_of(text: SourceText, limit: int | None = None) -> int:
    size = -1
    for line in text.lines:
        size += byte_length(line) + 1
        if limit is not None and size > limit:
            break
    return size


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _share_of_current(text: SourceText, total: int, step: int) -> int:
    """Bytes kept for the current file before the others are chosen: its size and a little to grow, in whole steps."""
    needed = _bytes_of(text, limit=total)
    return min(_round_up(needed + step // 4, step), CURRENT_STEPS * step)


def _choose_others(others: Sequence[SourceFile], room: int) -> tuple[list[SourceFile], int]:
    """The most recently used files that fit, the first that doesn't cut after a whole line; and their bytes."""
    chosen: list[SourceFile] = []
    used = 0
    for file in reversed(others):
        overhead = byte_length(file.path or "") + 4
        size = _bytes_of(file.text, limit=room) + overhead
        if used + size > room:
            lines = _head_within(file.text, room - used - overhead)
            if lines:
                chosen.append(replace(file, text=SourceText((*file.text.lines[:lines], ""))))
                used = room
            break
        if size > overhead:
            chosen.append(file)
            used += size
    return chosen[::-1], used


def _head_within(text: SourceText, room: int) -> int:
    size = count = 0
    for line in text.lines:
        size += byte_length(line) + 1
        if size > room:
            break
        count += 1
    return count


def _clean(text: str) -> str:
    """A lone surrogate can't be written as UTF-8, so the model sees U+FFFD; everything else stays."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
