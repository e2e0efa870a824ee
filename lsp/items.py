"""A small memory of items that were made, so that typing along one keeps the rest of it on screen.

An item is found again only for the very text it was made from: the same context, the same text after the cursor, and
the same text before it, followed by nothing but the item's own beginning.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from prompts.segments import Segment

CAPACITY = 64


@dataclass(frozen=True)
class _Made:
    key: Hashable
    prefix: str
    text: str


def item_key(uri: str, segments: tuple[Segment, ...], *settings: Hashable) -> Hashable:
    """Everything an item depends on except the text before the cursor."""
    return (uri, tuple(segment for segment in segments if segment.role != "prefix"), settings)


class ItemMemory:
    def __init__(self) -> None:
        self._made: list[_Made] = []  # the newest last

    def put(self, key: Hashable, prefix: str, text: str) -> None:
        self._made = [made for made in self._made if (made.key, made.prefix) != (key, prefix)]
        self._made.append(_Made(key, prefix, text))
        del self._made[:-CAPACITY]

    def get(self, key: Hashable, prefix: str) -> str | None:
        """What is left of an item at ``prefix``; None when there is none or it was typed to its end."""
        for made in reversed(self._made):
            if not prefix.startswith(made.prefix):
                continue
            typed = prefix[len(made.prefix) :]
            if len(typed) < len(made.text) and made.text.startswith(typed) and made.key == key:
                return made.text[len(typed) :]
        return None

    def moved(self, before: Hashable, now: Hashable) -> None:
        """The context of a key was laid out in another way: its items are good for the new one."""
        self._made = [replace(made, key=now) if made.key == before else made for made in self._made]

    def clear(self) -> None:
        self._made.clear()
