"""The item after the item: once one is on the screen, what follows its acceptance is computed before it is asked
for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from lsp.items import Item
from prompts.segments import Segment
from prompts.stops import choose_stop
from server.wire import CompletionRequest

PAUSE_S = 0.05
"""After an item was given: enough for the next key of somebody who types on to come first."""


@dataclass(frozen=True)
class Accepted:
    """The place where an accepted item ends: what the memory of items knows it by."""

    key: Hashable
    prefix: str
    suffix: str


def request_after(request: CompletionRequest, item: Item) -> tuple[CompletionRequest, str, str]:
    """The request for the place where ``item`` ends once it is accepted, and the text before and after that place.

    It is laid out as the real one will be, so that the engine's state for it is the one that is needed then: the
    cursor's line by itself, what is before it appended to.
    """
    others = [segment for segment in request.segments if segment.role not in ("prefix", "suffix")]
    suffixes = [segment for segment in request.segments if segment.role == "suffix"]
    before = [segment for segment in request.segments if segment.role == "prefix"]
    last = before.pop()
    lines, newline, head = (last.text + item.text).rpartition("\n")
    lines += newline
    if before and lines:
        before[-1] = replace(before[-1], text=before[-1].text + lines)
    elif lines:
        before.append(replace(last, text=lines, checkpoint=True))
    if head or not before:
        before.append(replace(last, text=head))
    after = [_without(suffixes[0], item.replaces), *suffixes[1:]] if suffixes else []
    prefix, suffix = ("".join(segment.text for segment in part) for part in (before, after))
    ahead = replace(
        request,
        segments=(*others, *after, *before),
        stop=choose_stop(prefix, suffix),
        priority="background",
    )
    return ahead, prefix, suffix


def _without(suffix: Segment, length: int) -> Segment:
    return replace(suffix, text=suffix.text[length:])
