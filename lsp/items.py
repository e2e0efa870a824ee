"""Items, and a small memory of those that were made, so that typing along one keeps the rest of it on screen.

An item turns the document into: text before the cursor, the item, the text after the cursor without what is replaced.
It is found again wherever the rest of it leads to that very document: the same context, the same text before the cursor
followed by nothing but the item's own beginning, and the same text after it. Brackets and quotes that the editor
closed by itself meanwhile, and the line it broke between two of them, stand in the way of nothing: the item has them
too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from prompts.segments import Segment

CAPACITY = 64
LONGEST_CLOSERS = 40
"""Characters after the cursor that an editor may have put there by itself, with the indentation of a broken line."""
CUT_FROM = 100
"""Characters; less of a suffix is in no prompt where there is more."""
_CLOSERS = frozenset(")]}>\"'`; \t\n")


@dataclass(frozen=True)
class Item:
    """text: inserted at the cursor, LF line ends. replaces: so many characters after it in its line are replaced."""

    text: str
    replaces: int = 0


@dataclass(frozen=True)
class _Made:
    key: Hashable
    prefix: str
    suffix: str
    """Without what the item replaces."""
    text: str
    prefetched: bool


def item_key(uri: str, segments: tuple[Segment, ...], *settings: Hashable) -> Hashable:
    """Everything an item depends on except the text around the cursor."""
    others = tuple(segment for segment in segments if segment.role not in ("prefix", "suffix"))
    return (uri, tuple(segment.path for segment in segments if segment.role == "suffix"), others, settings)


class ItemMemory:
    def __init__(self) -> None:
        self._made: list[_Made] = []  # the newest last

    def put(self, key: Hashable, prefix: str, suffix: str, item: Item, *, prefetched: bool = False) -> None:
        """prefetched: made before anybody asked for it."""
        made = _Made(key, prefix, suffix[item.replaces :], item.text, prefetched)
        same = [m for m in self._made if (m.key, m.prefix, m.suffix, m.text) == (key, prefix, made.suffix, made.text)]
        self._made = [m for m in self._made if m not in same]
        self._made.append(made)
        del self._made[:-CAPACITY]

    def get(self, key: Hashable, prefix: str, suffix: str) -> tuple[Item, bool] | None:
        """What is left of the newest item that fits here, and whether it was prefetched; None when there is none or it
        was typed to its end."""
        return next(iter(self._fitting(key, prefix, suffix)), None)

    def all(self, key: Hashable, prefix: str, suffix: str) -> list[Item]:
        """What is left of every item that fits here, the newest first, each once."""
        return list(dict.fromkeys(item for item, _ in self._fitting(key, prefix, suffix)))

    def moved(self, before: Hashable, now: Hashable) -> None:
        """The context of a key was laid out in another way: its items are good for the new one."""
        self._made = [replace(made, key=now) if made.key == before else made for made in self._made]

    def clear(self) -> None:
        self._made.clear()

    def _fitting(self, key: Hashable, prefix: str, suffix: str) -> list[tuple[Item, bool]]:
        found = []
        for made in reversed(self._made):
            if not prefix.startswith(made.prefix):
                continue
            typed = prefix[len(made.prefix) :]
            if len(typed) < len(made.text) and made.text.startswith(typed) and made.key == key:
                item = _rest(made.text[len(typed) :], suffix, made.suffix)
                if item is not None:
                    found.append((item, made.prefetched))
        return found


def _rest(text: str, suffix: str, goal: str) -> Item | None:
    """The item that turns ``suffix`` into ``text`` and ``goal``; None when more stands in between than closers."""
    for length in range(min(LONGEST_CLOSERS, len(suffix)) + 1):
        if length and suffix[length - 1] not in _CLOSERS:
            return None
        if not _same(suffix[length:], goal):
            continue
        between = suffix[:length]
        while between and text and text[-1] == between[-1]:
            text, between = text[:-1], between[:-1]
        # What is left is replaced; a line break can't be, and an item that only repeats is none.
        return Item(text, len(between)) if text and "\n" not in between else None
    return None


def _same(suffix: str, goal: str) -> bool:
    """Either may have been cut at its end, where the prompt had no more room; a short one is whole."""
    known = min(len(suffix), len(goal))
    return suffix == goal or (known >= CUT_FROM and suffix[:known] == goal[:known])
