"""What a prompt has in common with the one before it, by its text: the client has no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prompts.segments import Segment
from prompts.text import byte_length


@dataclass(frozen=True)
class Reuse:
    """tokens: estimated, up to the first difference. segment: the index of the first segment that wasn't in the prompt
    before as it is, None when there is none; label: what it is, for people."""

    tokens: int = 0
    segment: int | None = None
    label: str = ""


def label_of(segments: Sequence[Segment], index: int | None) -> str:
    """What the segment is: its source, and its path if it has one; empty for None and for an index out of range."""
    if index is None or not 0 <= index < len(segments):
        return ""
    segment = segments[index]
    return segment.source if segment.path is None else f"{segment.source} {segment.path}"


def compare(before: Sequence[Segment], segments: Sequence[Segment], bytes_per_token: float) -> Reuse:
    """Where ``segments`` first differ from ``before``, and how much stands before that.

    A cut that only moved within the same text is no difference.
    """
    size = 0
    place = 0
    for old, new in zip(before, segments, strict=False):
        if (old.role, old.path, old.text) != (new.role, new.path, new.text):
            break
        size += byte_length(new.text)
        place += 1
    if place == len(segments):
        return Reuse(int(size / bytes_per_token))
    first = segments[place]
    was, now = _text_from(before, place, first), _text_from(segments, place, first)
    common = _common(was, now)
    tokens = int((size + byte_length(now[:common])) / bytes_per_token)
    if first.role == "prefix":
        if common == len(now):
            return Reuse(tokens)
        while common >= len(segments[place].text):
            common -= len(segments[place].text)
            place += 1
    return Reuse(tokens, place, label_of(segments, place))


def _common(first: str, second: str) -> int:
    """How many characters two texts share at their beginning."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])


def _text_from(segments: Sequence[Segment], place: int, first: Segment) -> str:
    """What stands at ``place``, if it is the same part of a prompt as ``first``; the prefix is one part to its end."""
    rest = segments[place:]
    if first.role == "prefix":
        return "".join(segment.text for segment in rest if segment.role == "prefix")
    return rest[0].text if rest and (rest[0].role, rest[0].path) == (first.role, first.path) else ""
