"""A session through one layout: what each request had to prefill, beside what had changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.figures import Figure, Section
from bench.replay.cache import CountingCache
from bench.replay.history import History
from bench.replay.prompts import Layout
from bench.replay.typist import Step, moments
from prompts.fim import FimTokenizer
from prompts.segments import Segment
from server.cache.borders import ON_CPU

REMEMBERED = 4096
"""Texts whose tokens are remembered."""
NEEDED = 0.97
"""Share of the prompts' tokens that must be reused."""


@dataclass(frozen=True)
class Request:
    """Tokens. change: of the segments that are new in the prompt, the prefix only from its first difference on."""

    step: Step
    length: int
    reused: int
    change: int

    @property
    def prefilled(self) -> int:
        return self.length - self.reused

    @property
    def excess(self) -> int:
        """Tokens that were computed again although they hadn't changed."""
        return max(0, self.prefilled - self.change)


class RememberingTokenizer:
    """A tokenizer for texts most of which come again."""

    def __init__(self, tokenizer: FimTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if (ids := self._known.get(text)) is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            ids = self._known[text] = self._tokenizer.encode(text)
        return ids

    def special(self, name: str) -> int | None:
        return self._tokenizer.special(name)


def replay(history: History, layout: Layout, tokenizer: FimTokenizer, *, longest: int) -> list[Request]:
    """Every request of the session. longest: tokens of a prompt, for the cache's size."""
    cache = CountingCache(longest)
    remembering = RememberingTokenizer(tokenizer)
    requests: list[Request] = []
    before: list[Segment] = []
    for moment in moments(history):
        if moment.step == "rests" and not layout.rests(moment):
            continue
        segments = layout.segments(moment)
        prompt = layout.tokens(segments, remembering)
        reused = cache.ask(prompt.ids, prompt.checkpoints)
        change = _change(before, segments, prompt.lengths, remembering.encode)
        requests.append(Request(moment.step, len(prompt.ids), reused, change))
        before = segments
    return requests


def _change(
    before: Sequence[Segment], now: Sequence[Segment], lengths: Sequence[int], encode: Callable[[str], list[int]]
) -> int:
    held = Counter((segment.role, segment.path, segment.text) for segment in before)
    change = sum(
        length
        for segment, length in zip(now, lengths, strict=True)
        if segment.role != "prefix" and not held[segment.role, segment.path, segment.text]
    )
    old, new = ([i for s in part if s.role == "prefix" for i in encode(s.text)] for part in (before, now))
    limit = min(len(old), len(new))
    return change + len(new) - next((i for i in range(limit) if old[i] != new[i]), limit)


def reused_share(requests: Sequence[Request]) -> float:
    """Of the tokens of all prompts but the first, which nothing could be reused for; rests aren't waited for."""
    asked = [request for request in requests[1:] if request.step != "rests"]
    return sum(request.reused for request in asked) / sum(request.length for request in asked)


def replay_section(name: str, requests: Sequence[Request]) -> Section:
    section = Section(f"Prompts laid out by {name}")
    for step in ("types", "goes to a place", "goes to a file", "rests"):
        those = [request for request in requests[1:] if request.step == step]
        if those:
            section.figures += [
                Figure(f"{step}: prefilled", "tokens", tuple(float(request.prefilled) for request in those)),
                Figure(f"{step}: more than its change", "tokens", tuple(float(request.excess) for request in those)),
            ]
            most = max(those, key=lambda request: request.excess)
            section.facts.append(
                (
                    f"most of all when one {step}",
                    f"{max(request.prefilled for request in those)} prefilled; most beyond a change {most.excess}: "
                    f"{most.prefilled} for {most.change} (a checkpoint gap is {ON_CPU.spacing})",
                )
            )
    asked = [request for request in requests if request.step != "rests"]
    section.facts += [
        ("requests", f"{len(asked)} of {sum(r.length for r in asked) / len(asked):.0f} tokens on average"),
        ("reused of all prompt tokens after the first request", f"{reused_share(requests):.2%}"),
    ]
    return section
