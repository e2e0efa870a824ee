"""The figures that the kernel is judged by, with their bars where these were set: the 27B shape on an H200."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.figures import Figure, Section, Target
from bench.kernel.launches import Case, Timing
from server.kernel.model import KernelModel

USUAL, LONG = 4096, 100_000
"""Positions."""
ROWS = {
    5: Target("≤", 1.08, reach=1.02),
    8: Target("≤", 1.12, reach=1.03),
    16: Target("≤", 1.40, reach=1.15),
}
"""Time of so many rows over the time of one."""
STATED = (3.3, 3.9)
"""Tokens a cycle of four drafts."""


def are_set_for(model: KernelModel, card: str) -> bool:
    c = model.config
    return (c.hidden, c.ffn, c.layers) == (5120, 17408, 64) and "H200" in card


def bars_section(timings: Iterable[Timing], stream: float, apply: bool) -> Section:
    """stream: bytes per second of the ceiling. apply: the bars hold here."""
    found = {timing.case: timing for timing in timings}

    def samples(rows: int, drafts: int, context: int) -> tuple[float, ...]:
        timing = found.get(Case(rows, drafts, context))
        return timing.milliseconds if timing else ()

    def bar(target: Target) -> Target | None:
        return target if apply else None

    one = samples(1, 0, USUAL)
    section = Section("Bars" if apply else "Figures (the bars are for the 27B shape on an H200)")
    section.figures = [
        Figure(f"T=1, context {USUAL}", "ms", one, bar(Target("≤", 4.7, reach=3.9))),
        Figure(f"T=1, context {USUAL}: share of the stream", "", _shares(found, stream), None),
        *(
            Figure(f"T={rows} over T=1", "", _over(samples(rows, 0, USUAL), one), bar(target))
            for rows, target in ROWS.items()
        ),
        Figure(f"n=4, whole cycle, context {USUAL}", "ms", samples(5, 4, USUAL), bar(Target("≤", 5.6, reach=4.3))),
        Figure(f"T=1, context {LONG}", "ms", samples(1, 0, LONG), bar(Target("≤", 7.2, reach=5.6))),
        *(
            Figure(
                f"n=4 at {tokens} tokens a cycle", "tokens/s", tuple(tokens / ms * 1e3 for ms in samples(5, 4, USUAL))
            )
            for tokens in STATED
        ),
        Figure("without drafts", "tokens/s", tuple(1e3 / ms for ms in one)),
    ]
    return section


def _shares(found: dict[Case, Timing], stream: float) -> tuple[float, ...]:
    timing = found.get(Case(1, 0, USUAL))
    return tuple(timing.weights / ms * 1e3 / stream for ms in timing.milliseconds) if timing else ()


def _over(samples: Sequence[float], one: Sequence[float]) -> tuple[float, ...]:
    """Each over the median of the time of one row."""
    return tuple(ms / Figure("", "", tuple(one)).median for ms in samples) if one else ()
