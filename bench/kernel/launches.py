"""Launches timed one by one: every number of rows and of drafts, at every context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Protocol

import torch

from bench.figures import Figure, percentile
from server.kernel.model import KernelModel
from server.kernel.plan import Plan, build_plan
from server.kernel.sequence import Buffers
from server.kernel.stand_in import fill, places, put

WARM_UPS = 3
ROOM = 64
"""Positions behind the context."""
HEAD_START = 1_000_000
"""Cycles that the GPU is kept busy before a timed launch: so it never waits for the host inside the measured time."""

Timer = Callable[[Callable[[], None]], float]
"""Milliseconds that the GPU takes for what a call starts on it."""


class Kernel(Protocol):
    """What is measured: a `GpuKernel`."""

    model: KernelModel
    sms: int

    def new_buffers(self, capacity: int, logits: bool = False) -> Buffers: ...

    def launch(self, plan: Plan, at: Buffers) -> None: ...

    def run(self, plan: Plan, at: Buffers) -> None: ...

    def wait(self) -> None: ...


@dataclass(frozen=True)
class Case:
    """rows: T. drafts: n steps of the MTP head, whose drafts are verified; 0: the host gives T - 1."""

    rows: int
    drafts: int
    context: int

    @property
    def name(self) -> str:
        return f"T={self.rows} n={self.drafts}"


@dataclass(frozen=True)
class Timing:
    """milliseconds: of each launch. weights: bytes of the matrices in the file that a launch streams. memory: the same
    with states, keys and values."""

    case: Case
    milliseconds: tuple[float, ...]
    weights: int
    memory: int

    @property
    def median(self) -> float:
        return percentile(self.milliseconds, 0.5)

    def share(self, stream: float) -> float:
        """Of the stream's bytes per second, by the weights alone."""
        return self.weights / (self.median / 1e3) / stream

    def to_json(self, stream: float) -> dict[str, Any]:
        figure = Figure(self.case.name, "ms", self.milliseconds).to_json()
        seconds = self.median / 1e3
        return figure | {
            "rows": self.case.rows,
            "drafts": self.case.drafts,
            "context": self.case.context,
            "weights_bytes": self.weights,
            "memory_bytes": self.memory,
            "weights_gb_per_s": self.weights / seconds / 1e9,
            "share_of_stream": self.share(stream),
            "share_of_stream_with_states_and_caches": self.memory / seconds / stream,
        }


def cases(rows: Sequence[int], drafts: Sequence[int], contexts: Sequence[int]) -> list[Case]:
    """T rows with given drafts, and the head's n drafts with T = n + 1; by context, the shortest first."""
    return [
        case
        for context in sorted(contexts)
        for case in [*(Case(t, 0, context) for t in rows), *(Case(n + 1, n, context) for n in drafts)]
    ]


def measure(kernel: Kernel, wanted: Sequence[Case], timer: Timer, launches: int) -> Iterator[Timing]:
    """Each case that often, after warming up, always from the same place; nothing is zero. Cases of a context follow
    each other."""
    plan_of = lru_cache(maxsize=None)(partial(build_plan, kernel.model, kernel.sms))
    for context, group in groupby(wanted, key=lambda case: case.context):
        at = kernel.new_buffers(context + ROOM)
        fill(at, kernel.model.config.vocab)
        for case in group:
            plan = plan_of(case.rows, case.drafts)
            counts = places(at, context, case.rows, external=case.drafts == 0 and case.rows > 1)
            milliseconds = []
            for _ in range(WARM_UPS + launches):
                put(at, counts, case.rows)
                milliseconds.append(timer(partial(kernel.launch, plan, at)))
            weights = sum(i.cost.weights for i in plan.instructions)
            memory = sum(i.cost.memory_bytes(context) for i in plan.instructions)
            yield Timing(case, tuple(milliseconds[WARM_UPS:]), weights, memory)
        del at  # before the next context's are made


def event_timer(wait: Callable[[], None]) -> Timer:
    """By CUDA events around the call. wait: until all has ended; its errors come through."""

    def milliseconds(start: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]
        begin.record()
        start()
        end.record()
        wait()
        return float(begin.elapsed_time(end))

    return milliseconds


def launch_table(timings: Sequence[Timing], stream: float) -> list[str]:
    """A row for each kind of launch, and for each context: median, p10 to p90 in ms, share of the stream."""
    contexts = sorted({timing.case.context for timing in timings})
    by_place = {(timing.case.name, timing.case.context): timing for timing in timings}
    rows = [["", *(f"context {context}" for context in contexts)]]
    for name in dict.fromkeys(timing.case.name for timing in timings):
        found = [by_place.get((name, context)) for context in contexts]
        rows.append([name, *("-" if one is None else _cell(one, stream) for one in found)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cell(timing: Timing, stream: float) -> str:
    low, high = (percentile(timing.milliseconds, share) for share in (0.1, 0.9))
    return f"{timing.median:7.3f} [{low:.3f} {high:.3f}] {timing.share(stream):4.0%}"
