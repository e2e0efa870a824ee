"""The places that examples/README.md names are there."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PLACES = re.findall(
    r"^\| `(\S+\.py):(\d+):(\d+)` \|", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("name", "line", "column"), PLACES)
def test_an_unfinished_place_of_the_examples_is_where_a_line_ends(name, line, column):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    compile(text, name, "exec")
    lines = text.split("\n")
    assert int(column) == len(lines[int(line) - 1]) + 1
    assert lines[int(line) - 1].strip() in ("", "return")


def test_there_are_places_in_each_example():
    assert {name for name, _, _ in PLACES} == {path.name for path in EXAMPLES.glob("*.py")}
