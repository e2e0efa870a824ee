"""Where a launch's time goes: figures of its time stamps, by kind of instruction, as a table and as bars.

An instruction's time is from the last SM's arrival at the end of the one before to the last SM's arrival at its own, so
these times add up to the launch's. It falls into six parts, each a mean over the SMs: waiting (until the SM has seen
that all others have finished the instruction before), input (until its first window lies in shared memory), multiplying
(until the last tile's sums are added up; all groups of outputs before the last one are finished meanwhile), finishing
(the last group; all that instructions without matrices do), handing on (until its arrival is out), and the skew between
SMs (until the last one has arrived).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from server.kernel.instructions import Instruction
from server.kernel.plan import Plan
from server.kernel.show import by_kind

BAR = 40
"""Characters of the longest bar."""


@dataclass(frozen=True)
class PhaseFigures:
    """Instructions of a kind, µs of one of them on average. megabytes: of all of them, from and to device memory
    (matrices as they lie in the file, states, keys and values)."""

    part: str
    kind: str
    count: int
    megabytes: float
    each_us: float
    waiting_us: float
    input_us: float
    multiplying_us: float
    finishing_us: float
    handing_on_us: float
    skew_us: float

    @property
    def spent_us(self) -> tuple[float, ...]:
        """As SIGNS has them."""
        return (
            self.waiting_us, self.input_us, self.multiplying_us, self.finishing_us, self.handing_on_us, self.skew_us,
        )  # fmt: skip

    @property
    def total_us(self) -> float:
        return self.count * self.each_us

    @property
    def gigabytes_per_second(self) -> float:
        return self.megabytes * 1e3 / self.total_us if self.total_us else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"total_us": self.total_us, "gb_per_s": self.gigabytes_per_second}


def phase_figures(plan: Plan, launches: Sequence[Tensor], context: int) -> list[PhaseFigures]:
    """Of the time stamps of one or more launches of a plan, each int64 [instructions, SMs, 6] in nanoseconds (see
    `GpuKernel.times`), in the order of the plan. context: positions behind the rows.

    Raises ValueError for stamps of another plan, or none.
    """
    wanted = (len(plan.instructions), plan.sms)
    if not launches or any(times.shape[:2] != wanted for times in launches):
        shapes = [tuple(times.shape) for times in launches]
        raise ValueError(f"time stamps {shapes} for a plan of {wanted[0]} instructions on {wanted[1]} SMs")
    parts = torch.stack([_parts(times) for times in launches]).mean(0) / 1e3
    at = {instruction.name: index for index, instruction in enumerate(plan.instructions)}

    def figures(part: str, kind: str, found: list[Instruction]) -> PhaseFigures:
        spent = parts[[at[i.name] for i in found]].mean(0).tolist()
        megabytes = sum(i.cost.memory_bytes(context) for i in found) / 1e6
        return PhaseFigures(part, kind, len(found), megabytes, sum(spent), *spent)

    both = (("draft", plan.draft), ("trunk", plan.trunk))
    return [figures(part, kind, found) for part, there in both for kind, found in by_kind(there).items()]


def _parts(times: Tensor) -> Tensor:
    """[instructions, SMs, 6] -> nanoseconds [instructions, SIGNS]."""
    times = times.cummax(2).values  # what an SM didn't do took no time
    times = (times - times[0, :, 1].min()).double()  # nanoseconds since 1970 aren't exact as floating point
    end = times[:, :, -1].amax(1)
    before = torch.cat((end.new_zeros(1), end[:-1]))
    return torch.cat((before[:, None], times[:, :, 1:].mean(1), end[:, None]), 1).diff(dim=1)


SIGNS = {"waiting": ".", "input": ":", "multiplying": "*", "finishing": "#", "handing on": ">", "skew": "~"}
"""The parts of an instruction's time, and what bars are made of."""
COLUMNS = ("part", "instruction", "count", "MB", "µs each", "µs", "GB/s", *SIGNS)


def table(phases: Sequence[PhaseFigures]) -> list[str]:
    """Lines; times of the last six columns are µs of one instruction."""
    rows = [COLUMNS, *map(_cells, phases)]
    total_us, megabytes = sum(p.total_us for p in phases), sum(p.megabytes for p in phases)
    count = sum(p.count for p in phases)
    rate = f"{megabytes * 1e3 / total_us:.0f}" if total_us else ""
    rows.append(("launch", "", str(count), f"{megabytes:.1f}", "", f"{total_us:.0f}", rate, *("" for _ in SIGNS)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(p: PhaseFigures) -> tuple[str, ...]:
    return (
        p.part, p.kind, str(p.count), f"{p.megabytes:.1f}", f"{p.each_us:.2f}", f"{p.total_us:.0f}",
        f"{p.gigabytes_per_second:.0f}", *(f"{us:.2f}" for us in p.spent_us),
    )  # fmt: skip


def picture(phases: Sequence[PhaseFigures]) -> list[str]:
    """A bar for each kind, as long as its time in the launch, of SIGNS."""
    longest = max((p.total_us for p in phases), default=0.0)
    names = [f"{p.part} {p.kind}" for p in phases]
    width = max(map(len, names), default=0)
    whole = sum(p.total_us for p in phases)
    lines = []
    for name, p in zip(names, phases, strict=True):
        # Borders are rounded, not lengths: so a bar is as long as its sum.
        ends = (0.0, *accumulate(p.spent_us))
        borders = [round(max(0.0, p.count * end) / longest * BAR) if longest else 0 for end in ends]
        bar = "".join(
            sign * (stop - begin) for sign, (begin, stop) in zip(SIGNS.values(), pairwise(borders), strict=True)
        )
        lines.append(f"{name.ljust(width)}  {bar.ljust(BAR)} {p.total_us / whole if whole else 0:4.0%}".rstrip())
    return lines
