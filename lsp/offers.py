"""The items that editors were given lately, by their id: what of one was accepted, and where one was dismissed.

Nothing of it leaves the process but lines in the editor's own log.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from prompts.text import Cursor

CAPACITY = 256


@dataclass
class Offer:
    """One item. text: as the editor has it, with the document's line ends. key: where in which version it stands."""

    id: str
    text: str
    key: tuple[str, int, Cursor]
    accepted: int = 0
    """UTF-16 units from the start of the text, as far as the editor has told."""


class Offers:
    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._dismissed: set[tuple[str, int, Cursor]] = set()
        self._numbers = itertools.count(1)

    def add(self, uri: str, version: int, cursor: Cursor, text: str) -> Offer:
        offer = Offer(str(next(self._numbers)), text, (uri, version, cursor))
        self._offers[offer.id] = offer
        while len(self._offers) > CAPACITY:
            del self._offers[next(iter(self._offers))]
        return offer

    def get(self, item_id: object) -> Offer | None:
        return self._offers.get(item_id) if isinstance(item_id, str) else None

    def dismiss(self, offer: Offer) -> None:
        self._dismissed.add(offer.key)

    def is_dismissed(self, uri: str, version: int, cursor: Cursor) -> bool:
        return (uri, version, cursor) in self._dismissed

    def changed(self, uri: str) -> None:
        """The document changed: what was dismissed in it may be offered again."""
        self._dismissed = {key for key in self._dismissed if key[0] != uri}
