"""Draftline's own messages about an item: its next part, and what became of it.

Every item has an ``id``, in the argument of its command. ``docs/language-server.md`` describes the messages.
"""

from __future__ import annotations

from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp.offers import Offer, Offers
from lsp.parts import after_utf16, next_part, utf16_length

NEXT_PART = "draftline/nextPart"
SHOWN = "draftline/didShow"
PARTLY_ACCEPTED = "draftline/didPartiallyAccept"
DISMISSED = "draftline/didDismiss"


def add_parts(server: LanguageServer, offers: Offers) -> None:
    """Register the messages. One with parameters that make no sense is refused, or told in the log, in one line."""

    def log(line: str, kind: types.MessageType = types.MessageType.Log) -> None:
        server.window_log_message(types.LogMessageParams(kind, line))

    def told(method: str, params: Any) -> Offer | None:
        if not isinstance(getattr(params, "id", None), str):
            log(f"{method} needs the id of an item; it was left out", types.MessageType.Warning)
        return offers.get(getattr(params, "id", None))

    @server.feature(NEXT_PART)
    def part(params: Any) -> dict[str, Any] | None:
        item_id, kind, begin = (getattr(params, name, None) for name in ("id", "part", "acceptedLength"))
        begin = 0 if begin is None else begin
        if not isinstance(item_id, str) or kind not in ("word", "line") or type(begin) is not int or begin < 0:
            raise JsonRpcInvalidParams(f'{NEXT_PART} needs an id, a part that is "word" or "line", and a length')
        offer = offers.get(item_id)
        rest = after_utf16(offer.text, begin) if offer is not None else None
        return part_of(rest, kind, begin) if rest else None

    @server.feature(SHOWN)
    def shown(params: Any) -> None:
        if (offer := told(SHOWN, params)) is not None:
            log(f"item shown id={offer.id}")

    @server.feature(PARTLY_ACCEPTED)
    def partly_accepted(params: Any) -> None:
        if (offer := told(PARTLY_ACCEPTED, params)) is None:
            return
        length = getattr(params, "acceptedLength", None)
        if type(length) is not int or after_utf16(offer.text, length) is None:
            log(f"{PARTLY_ACCEPTED} needs a length that is a place in the item", types.MessageType.Warning)
            return
        offer.accepted = length
        log(f"item accepted in part id={offer.id} length={length}")

    @server.feature(DISMISSED)
    def dismissed(params: Any) -> None:
        if (offer := told(DISMISSED, params)) is not None:
            offers.dismiss(offer)
            log(f"item dismissed id={offer.id}")


def part_of(rest: str, kind: Any, begin: int) -> dict[str, Any]:
    """The next part of what is left of an item, which begins ``begin`` UTF-16 units after the item's start."""
    line_end = next((end for end in ("\r\n", "\r") if end in rest), "\n")
    text = next_part(rest.replace(line_end, "\n"), kind).replace("\n", line_end)
    return {"text": text, "acceptedLength": begin + utf16_length(text), "rest": rest[len(text) :]}
