"""Prompts that nothing is known of: tokens per second of prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.engine import BenchEngine
from bench.figures import Figure, Section
from bench.material import Encoder, document
from prompts.segments import Segment
from server.wire import CompletionRequest

LENGTHS = (512, 2000)
"""Tokens, about: a text is cut at a line."""


@dataclass(frozen=True)
class Prefill:
    """tokens: computed, none reused. rate: in tokens per second."""

    tokens: int
    rate: float


def new_prompts(encoder: Encoder, text: str, tokens: int, count: int) -> list[str]:
    """Prompts of ``tokens`` tokens with another first line each, so that no prefix is shared."""
    return [f"# {number}, {tokens} tokens\n" + document(encoder, tokens - 10, text) for number in range(count)]


def measure_prefill(engine: BenchEngine, prompts: Sequence[str]) -> list[Prefill]:
    """Raises ValueError when something was reused after all."""
    results = []
    for prompt in prompts:
        segment = Segment("text", prompt, "benchmark")
        _, finished = engine.complete(CompletionRequest((segment,), route="plain", max_tokens=1))
        counters = finished.counters
        if counters.reused:
            raise ValueError(f"{counters.reused} tokens of a new prompt were reused")
        results.append(Prefill(counters.prefilled, counters.prefill_tokens_per_second))
    return results


def prefill_section(results: dict[int, list[Prefill]]) -> Section:
    section = Section("Prefill of new prompts")
    for length, runs in results.items():
        section.figures.append(Figure(f"{length} tokens", "tokens/s", tuple(run.rate for run in runs)))
        computed = sorted({run.tokens for run in runs})
        section.facts.append((f"computed for {length}", ", ".join(map(str, computed))))
    return section
