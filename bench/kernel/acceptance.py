"""What a model with real weights makes of its own drafts: accepted tokens by position, and tokens per second."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import torch

from bench.figures import Figure, Section
from bench.kernel.launches import Kernel
from server.kernel.cycle import Cycles
from server.kernel.sequence import take_over
from server.model.hybrid import HybridModel

PROMPT, ANSWER = 256, 64
"""Tokens."""


def acceptance_section(
    reference: HybridModel, kernel: Kernel, windows: Sequence[Sequence[int]], drafts: int, prompts: int
) -> Section:
    """Greedy answers behind the beginnings of windows, with and without drafts, by the host's clock."""
    section = Section(f"Greedy answers behind {PROMPT} tokens of the text, {drafts} drafts a cycle")
    kept, rates, plain, per_cycle = Counter[int](), [], [], []
    for ids in [ids for ids in windows if len(ids) >= PROMPT][:prompts]:
        lengths, seconds = _answer(reference, kernel, ids[:PROMPT], drafts)
        kept.update(lengths)
        rates.append(sum(lengths) / seconds)
        per_cycle.append(sum(lengths) / len(lengths))
        lengths, seconds = _answer(reference, kernel, ids[:PROMPT], 0)
        plain.append(sum(lengths) / seconds)
    section.figures = [
        Figure("tokens per cycle", "tokens", tuple(per_cycle)),
        Figure("decode, with drafts", "tokens/s", tuple(rates)),
        Figure("decode, without", "tokens/s", tuple(plain)),
    ]
    cycles = sum(kept.values())
    shares = [sum(n for length, n in kept.items() if length > row) / cycles for row in range(1, drafts + 1) if cycles]
    section.facts.append(("accepted by position", ", ".join(f"{share:.0%}" for share in shares) or "no prompt"))
    return section


def _answer(reference: HybridModel, kernel: Kernel, prompt: Sequence[int], drafts: int) -> tuple[list[int], float]:
    """-> tokens of each cycle, and the seconds of all of them. The first cycle, which may compile, isn't timed."""
    state = reference.new_state()
    reference.prefill(prompt[:-1], state)
    at = kernel.new_buffers(len(prompt) + ANSWER + 32)
    with torch.inference_mode():
        take_over(at, kernel.model.config, state, prompt[-1])
    cycles = Cycles(kernel.model, kernel.sms, at, kernel.run)
    cycles.cycle(drafts)
    lengths: list[int] = []
    started = time.perf_counter()
    while sum(lengths) < ANSWER:
        lengths.append(len(cycles.cycle(drafts)))
    return lengths, time.perf_counter() - started
