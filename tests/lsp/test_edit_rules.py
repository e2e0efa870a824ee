"""What an edit changes, which lines it is about, and what is refused: functions of text."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from lsp.edit.check import Refused, check_syntax, fitted
from lsp.edit.hunks import Hunk, hunks_of
from lsp.edit.lines import definition_at, selected_lines
from prompts.text import Cursor


def applied(lines: list[str], hunks: list[Hunk], first: int) -> list[str]:
    for hunk in reversed(hunks):
        lines = [*lines[: hunk.start - first], *hunk.lines, *lines[hunk.end - first :]]
    return lines


def test_hunks_turn_the_old_lines_into_the_new_ones() -> None:
    chance = random.Random(5)
    for _ in range(300):
        old = [chance.choice("abcd") for _ in range(chance.randrange(9))]
        new = [chance.choice("abcd") for _ in range(chance.randrange(9))]
        hunks = hunks_of(old, new, 7)
        assert applied(old, hunks, 7) == new
        assert all(a.end < b.start for a, b in pairwise(hunks)), "with a line in common between"


def test_what_is_still_coming_is_no_deletion() -> None:
    old = ["a", "b", "c", "d"]
    assert hunks_of(old, ["a", "B"], 0, whole=False) == []
    assert hunks_of(old, ["a", "B", "c"], 0, whole=False) == [Hunk(1, 2, ("B",))]
    assert hunks_of(old, ["a", "B", "c"], 0) == [Hunk(1, 2, ("B",)), Hunk(3, 4, ())]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (["    x", "      y"], ["x", "  z"], ["    x", "      z"]),
        (["    x"], ["    z"], ["    z"]),
        (["\tx"], ["z", "", "\tw"], ["\tz", "", "\t\tw"]),
        (["", "x", "", ""], ["", "", "y"], ["", "y", "", ""]),
        ([""], ["", "y", ""], ["y"]),
        (["  a", "b"], ["a", "b"], ["a", "b"]),
        (["  x"], [], []),
        (["    x = 1"], ['    x = """a', 'b"""'], ['    x = """a', 'b"""']),
        (["    foo();"], ["#ifdef X", "    foo();", "#endif"], ["#ifdef X", "    foo();", "#endif"]),
    ],
)
def test_margin_and_blank_ends_are_the_old_ones(old: list[str], new: list[str], expected: list[str]) -> None:
    assert fitted(old, new) == expected


def test_an_answer_may_not_break_what_parsed() -> None:
    before, old, after = ["def f(a):"], ["    return a"], ["", "print(f(1))"]
    check_syntax(before, old, ["    return (a)"], after, "python")
    with pytest.raises(Refused, match="a syntax error"):
        check_syntax(before, old, ["    return (a"], after, "python")
    check_syntax(before, ["    return (a"], ["    return ((a"], after, "python")
    check_syntax(before, ["    return )("], ["    return a"], after, "python")
    for broken in ([], ["    a = 1", "      b = 2", "    return a"], ["return a"]):
        with pytest.raises(Refused, match="a syntax error"):
            check_syntax(before, old, broken, after, "python")
    with pytest.raises(Refused, match="brackets"):
        check_syntax([], ["f(x)"], ["f((x)"], [], "no such language")


def test_whole_lines_are_selected() -> None:
    assert selected_lines(Cursor(2, 3), Cursor(2, 3)) == (2, 3)
    assert selected_lines(Cursor(2, 3), Cursor(4, 1)) == (2, 5)
    assert selected_lines(Cursor(2, 0), Cursor(4, 0)) == (2, 4)


def test_without_a_selection_it_is_the_definition_around_the_cursor() -> None:
    lines = ["import os", "", "class A:", "    @property", "    def f(self):", "        return 1", "", "x = 2"]
    assert definition_at(lines, 5, "python") == (4, 6)
    assert definition_at(lines, 3, "python") == (3, 6)
    assert definition_at(lines, 2, "python") == (2, 6)
    assert definition_at(lines, 7, "python") == (7, 8)
    assert definition_at(["fn f() {", "  1", "}"], 1, "rust") == (0, 3)
    assert definition_at(["words"], 0, "") == (0, 1)
