"""Decoding with drafts and without, on the same prompts, turn by turn in the same engine process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.engine import BenchEngine
from bench.figures import Figure, Section, Target
from prompts.segments import Segment
from server.wire import CompletionRequest

ANSWER_TOKENS = 64
SPEEDUP = Target("≥", 1.15, reach=1.5)


@dataclass(frozen=True)
class Answer:
    """One greedy answer; rate: tokens per second of decoding."""

    text: str
    generated: int
    drafted: int
    accepted: int
    cycles: int
    rate: float


@dataclass(frozen=True)
class Pair:
    """The answers to one prompt with drafts and without."""

    on: Answer
    off: Answer

    @property
    def speedup(self) -> float:
        return self.on.rate / self.off.rate

    @property
    def same(self) -> bool:
        """The same text made of as many tokens."""
        return (self.on.text, self.on.generated) == (self.off.text, self.off.generated)


def answer(engine: BenchEngine, prompt: str, *, speculate: bool, tokens: int = ANSWER_TOKENS) -> Answer:
    request = CompletionRequest(
        (Segment("text", prompt, "benchmark", checkpoint=True),), route="plain", max_tokens=tokens, speculate=speculate
    )
    text, finished = engine.complete(request)
    c = finished.counters
    return Answer(text, c.generated, c.drafted, c.accepted, c.cycles, c.tokens_per_second)


def measure_pairs(engine: BenchEngine, prompts: Sequence[str]) -> list[Pair]:
    """Each prompt with drafts and without, and which of the two comes first changes from prompt to prompt.

    Two answers before teach the depth controller; they don't count.
    """
    for prompt in prompts[:2]:
        answer(engine, prompt, speculate=True)
    pairs = []
    for number, prompt in enumerate(prompts):
        on_first = number % 2 == 0
        first = answer(engine, prompt, speculate=on_first)
        second = answer(engine, prompt, speculate=not on_first)
        pairs.append(Pair(first, second) if on_first else Pair(second, first))
    return pairs


def is_exact(pairs: Sequence[Pair]) -> bool:
    """Greedy answers don't depend on drafting."""
    return all(pair.same for pair in pairs)


def speculation_section(pairs: Sequence[Pair]) -> Section:
    """Answers without a cycle, made by the prefill alone, say nothing about decoding and are left out."""
    used = [pair for pair in pairs if pair.on.cycles and pair.off.cycles]
    on, off = [pair.on for pair in used], [pair.off for pair in used]

    def figure(name: str, unit: str, samples: Sequence[float], target: Target | None = None) -> Figure:
        return Figure(name, unit, tuple(samples), target)

    section = Section("Speculation on against off, same prompts, alternating")
    section.figures = [
        figure("ratio of the rates, prompt by prompt", "", [pair.speedup for pair in used], SPEEDUP),
        figure("decode, speculation on", "tokens/s", [one.rate for one in on]),
        figure("decode, speculation off", "tokens/s", [one.rate for one in off]),
        figure("tokens per cycle, on", "tokens", [(one.generated - 1) / one.cycles for one in on]),
        figure("drafted per cycle, chosen by the controller", "rows", [one.drafted / one.cycles for one in on]),
        figure("tokens of an answer", "tokens", [one.generated for one in on]),
    ]
    drafted, accepted = sum(one.drafted for one in on), sum(one.accepted for one in on)
    if drafted:
        section.facts.append(("accepted", f"{accepted} of {drafted} drafts ({accepted / drafted:.0%})"))
    if used:
        section.facts.append(("ratio of the whole run", f"{_total_rate(on) / _total_rate(off):.2f}"))
    exact = sum(pair.same for pair in pairs)
    section.facts.append(("same greedy answer with and without", f"{exact} of {len(pairs)}"))
    section.details = [_details(pair) for pair in pairs]
    return section


def _total_rate(answers: Sequence[Answer]) -> float:
    """Tokens per second of all answers together: every answer's first token comes from the prefill."""
    tokens = [one.generated - 1 for one in answers]
    return sum(tokens) / sum(n / one.rate for n, one in zip(tokens, answers, strict=True))


def _details(pair: Pair) -> dict[str, Any]:
    return {"on": asdict(pair.on), "off": asdict(pair.off), "same": pair.same}
