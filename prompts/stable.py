"""The part of a prompt that rests: copies of open files in the order they came, and excerpts for what changed since.

A copy that moved or changed would cost the prefill of all that stands behind it. So an edited file keeps its place and
its old text, and an excerpt of the new text follows behind all copies, until a rebuild is cheaper. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prompts.changes import changed_regions
from prompts.segments import Segment
from prompts.text import SourceFile, SourceText, byte_length, sendable, text_bytes

OPEN_FILE, EDITED = "open file", "edited region"


@dataclass
class _Copy:
    """text: the whole file as it was; lines: how many of its lines the prompt has. size: of what it adds to it."""

    text: SourceText
    lines: int
    size: int


class StableFiles:
    """Copies of the open files besides the one at the cursor, by path."""

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}
        self._excerpts: dict[str, str] = {}
        self._compared: dict[str, tuple[SourceText, SourceText, str]] = {}
        self._seen: dict[str, SourceText] = {}
        self._left_out: set[str] = set()
        self.waiting = False
        """Since the last layout a file came that there was no room for."""

    @property
    def size(self) -> int:
        return sum(copy.size for copy in self._copies.values())

    @property
    def whole(self) -> frozenset[str]:
        """The paths of the files that the prompt has in full."""
        return frozenset(path for path, copy in self._copies.items() if copy.lines == len(copy.text.lines))

    def stale(self) -> tuple[int, int]:
        """Bytes of the excerpts that correct copies, and of all from the first of these copies on."""
        stale = [path for path in self._copies if path in self._excerpts]
        return sum(byte_length(self._excerpts[path]) for path in stale), self._behind(stale[0]) if stale else 0

    def segments(self) -> list[Segment]:
        copies = [
            Segment("file", _shown(copy.text, copy.lines), source=OPEN_FILE, path=path, checkpoint=True)
            for path, copy in self._copies.items()
        ]
        excerpts = [
            Segment("file", sendable(text), source=EDITED, path=path, checkpoint=True)
            for path, text in self._excerpts.items()
        ]
        return copies + excerpts

    def follow(self, others: Mapping[str, SourceFile], current: SourceFile, room: int, excerpt_room: int) -> int:
        """Take in what was opened, closed and changed. others: least recently used first. current: at the cursor.

        room: for copies; what doesn't fit waits for a layout. Returns the excerpts' bytes, at most
        ``excerpt_room``.
        """
        for path in [path for path in self._copies if path not in others]:
            del self._copies[path]
            self.waiting |= path != current.path and bool(self._left_out)
        self._left_out &= others.keys()
        open_files = (*others.values(), current)
        self._seen = {file.path: self._seen.get(file.path, file.text) for file in open_files if file.path}
        self._compared = {path: known for path, known in self._compared.items() if path in others}
        for path, file in others.items():
            if path not in self._copies and path not in self._left_out and not self._append(file, room):
                self.waiting = True
                self._left_out.add(path)
        return self._follow_changes(others, room, excerpt_room)

    def lay_out(self, others: Mapping[str, SourceFile], room: int, slack: int) -> None:
        """Choose again: of the most recently used files those that fit, the first that doesn't cut after a whole line.

        slack: kept free for files to come, when not all fit. Copies that stay as they are keep their order at the
        front, the others follow.
        """
        sizes = {path: _size(file, limit=room) for path, file in others.items()}
        if sum(sizes.values()) > room:
            room -= slack
        chosen: dict[str, _Copy] = {}
        for path in reversed(list(others)):
            file = others[path]
            if file.text.lines == ("",):
                continue
            if sizes[path] > room:
                if lines := _lines_within(file, room):
                    chosen[path] = _Copy(file.text, lines, room)
                break
            chosen[path] = _Copy(file.text, len(file.text.lines), sizes[path])
            room -= sizes[path]
        kept = [path for path in self._copies if path in chosen and _same(self._copies[path], chosen[path])]
        new = [path for path in reversed(chosen) if path not in kept]
        self._copies = {path: chosen[path] for path in (*kept, *new)}
        self._left_out = set(others) - set(chosen)
        self.waiting = False

    def _follow_changes(self, others: Mapping[str, SourceFile], room: int, excerpt_room: int) -> int:
        """Make the excerpts anew, in the order in which the files changed. Returns their bytes."""
        used = 0
        texts = {path: text for path in others if (text := self._change(path, others[path].text)) is not None}
        before, self._excerpts = self._excerpts, {}
        order = dict.fromkeys((*(path for path in before if path in texts), *texts))
        # What corrects a copy has to be there, and where room is short the file that changed last gives way.
        for path in sorted(order, key=lambda path: (path not in self._copies, before.get(path) != texts[path])):
            size = byte_length(texts[path]) + byte_length(path) + 4
            room_here = excerpt_room if path in self._copies else excerpt_room // 2  # the rest is for definitions
            fits = texts[path] != "" and used + size <= room_here
            if path in self._copies and (not fits or 2 * size >= self._behind(path)):
                self._refresh(others[path], room)
            elif fits:
                self._excerpts[path] = texts[path]
                used += size
        return used

    def _change(self, path: str, now: SourceText) -> str | None:
        """What the prompt lacks of a file's changes; None when it lacks nothing."""
        copy = self._copies.get(path)
        cut = copy is not None and copy.lines < min(len(copy.text.lines), len(now.lines))
        if copy is not None and cut and copy.text.lines[: copy.lines] == now.lines[: copy.lines]:
            copy.text = now  # it changed below where it is cut
        before = copy.text if copy is not None else self._seen[path]
        if before is now:
            return None
        if (known := self._compared.get(path)) is None or known[0] is not before or known[1] is not now:
            self._compared[path] = known = (before, now, changed_regions(before, now))
        return known[2] if before.lines != now.lines else None

    def _refresh(self, file: SourceFile, room: int) -> None:
        """Move a file to the end, as it is now; where all copies have not so much room, in as much as it had."""
        assert file.path is not None
        size = self._copies.pop(file.path).size
        if not self._append(file, max(room, self.size + size)):
            if lines := _lines_within(file, size):
                self._copies[file.path] = _Copy(file.text, lines, size)
            self.waiting = True

    def _append(self, file: SourceFile, room: int) -> bool:
        """Whether the file is there now, or there is nothing in it."""
        assert file.path is not None
        size = _size(file, limit=room)
        if self.size + size > room:
            return False
        if file.text.lines != ("",):
            self._copies[file.path] = _Copy(file.text, len(file.text.lines), size)
        return True

    def _behind(self, path: str) -> int:
        paths = list(self._copies)
        return sum(self._copies[after].size for after in paths[paths.index(path) :])


def _same(copy: _Copy, other: _Copy) -> bool:
    return copy.lines == other.lines and (copy.text is other.text or copy.text.lines == other.text.lines)


def _shown(text: SourceText, lines: int) -> str:
    return sendable("".join(line + "\n" for line in text.lines[:lines]) if lines < len(text.lines) else str(text))


def _size(file: SourceFile, limit: int) -> int:
    return text_bytes(file.text, limit) + byte_length(file.path or "") + 4


def _lines_within(file: SourceFile, room: int) -> int:
    size, count = byte_length(file.path or "") + 4, 0
    for line in file.text.lines:
        size += byte_length(line) + 1
        if size > room:
            break
        count += 1
    return count
