"""Sections as text: a table of figures (median, spread, runs, target) and the facts below it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Figure, Section, percentile

HEADER = ("", "median", "p10", "p90", "runs", "unit", "target")


def number(value: float) -> str:
    """Three significant digits at least, without an exponent."""
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}"


def row(figure: Figure) -> tuple[str, ...]:
    """The cells of a figure, as many as HEADER has."""
    target = ""
    if figure.target is not None:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[figure.met]
        target = f"{figure.target}: {verdict}"
    if not figure.samples:
        return (figure.name, "-", "-", "-", "0", figure.unit, target)
    spread = (number(percentile(figure.samples, share)) for share in (0.1, 0.9))
    return (figure.name, number(figure.median), *spread, str(len(figure.samples)), figure.unit, target)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns: numbers to the right, words to the left."""
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    numeric = range(1, 5)
    return [
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in rows
    ]


def section_text(section: Section) -> str:
    lines = [section.title]
    if section.figures:
        lines += [f"  {line}" for line in table([HEADER, *map(row, section.figures)])]
    lines += [f"  {name}: {text}" for name, text in section.facts]
    return "\n".join(lines)
