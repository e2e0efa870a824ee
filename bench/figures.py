"""What a benchmark reports: figures with their spread, targets, and plain facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the samples lie, interpolated between neighbours.

    Raises ValueError without samples or for another share.
    """
    if not samples:
        raise ValueError("there is no percentile of nothing")
    if not 0 <= share <= 1:
        raise ValueError(f"a share is between 0 and 1, not {share}")
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True)
class Target:
    """What a figure's median must be at most or at least, in the figure's unit; reach: better still."""

    kind: Literal["≤", "≥"]
    value: float
    reach: float | None = None

    def met(self, value: float) -> bool:
        return value <= self.value if self.kind == "≤" else value >= self.value

    def __str__(self) -> str:
        reach = "" if self.reach is None else f", reach for {self.reach:g}"
        return f"{self.kind} {self.value:g}{reach}"


@dataclass(frozen=True)
class Figure:
    """Something measured several times. No samples: it could not be measured."""

    name: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None

    @property
    def median(self) -> float:
        return percentile(self.samples, 0.5)

    @property
    def met(self) -> bool | None:
        """None without a target or without samples."""
        return self.target.met(self.median) if self.target and self.samples else None

    def to_json(self) -> dict[str, Any]:
        summary: dict[str, Any] = {"name": self.name, "unit": self.unit, "runs": len(self.samples)}
        if self.samples:
            summary |= {"median": self.median, "p10": percentile(self.samples, 0.1)}
            summary |= {"p90": percentile(self.samples, 0.9), "samples": list(self.samples)}
        if self.target:
            summary |= {"target": str(self.target), "met": self.met}
        return summary


@dataclass
class Section:
    """One part of a report. facts: name and text. details: whatever was recorded, for the JSON file alone."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "figures": [figure.to_json() for figure in self.figures],
            "facts": dict(self.facts),
            "details": self.details,
        }
