"""How figures look on a terminal."""

import pytest

from bench.figures import Figure, Section, Target
from bench.table import HEADER, number, row, section_text, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1234"),
        (99.96, "100.0"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.1234, "0.12"),
        (0.0123, "0.012"),
    ],
)
def test_numbers_keep_about_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_every_row_has_the_cells_of_the_header() -> None:
    for figure in (Figure("a", "ms", (1.0,)), Figure("b", "ms", (), Target("≤", 1)), Figure("c", "", (1, 2))):
        assert len(row(figure)) == len(HEADER)


def test_a_row_says_whether_the_target_is_met() -> None:
    assert row(Figure("a", "s", (5,), Target("≤", 4)))[-1] == "≤ 4: MISSED"
    assert row(Figure("a", "s", (3,), Target("≤", 4)))[-1] == "≤ 4: met"
    assert row(Figure("a", "", (1.2,), Target("≥", 1.15, reach=1.5)))[-1] == "≥ 1.15, reach for 1.5: met"
    assert row(Figure("a", "s", (), Target("≤", 4)))[-1] == "≤ 4: not measured"


def test_columns_are_aligned_numbers_to_the_right() -> None:
    lines = table([HEADER, ("long name", "1", "2", "3", "4", "ms", ""), ("x", "1000", "2", "3", "4", "s", "t")])
    assert lines[1].index("1") - lines[2].index("1000") == 3
    assert lines[0].index("unit") == lines[1].index("ms") == lines[2].rindex("s")


def test_facts_stand_below_the_figures() -> None:
    text = section_text(Section("Title", [Figure("f", "ms", (1,))], [("why", "because")]))
    assert text.splitlines()[0] == "Title"
    assert text.splitlines()[-1] == "  why: because"
