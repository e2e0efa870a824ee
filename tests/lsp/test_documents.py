"""Documents that are edited in place, against the plainest model: one string and character offsets."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp.documents import Change, Document, DocumentStore
from lsp.positions import join_surrogates, units_of

PIECES = st.lists(
    st.sampled_from(["a", "é", "漢", "😀", "\n", "\r", "\r\n", "\ud83d", "\ude00", "\u2028", "\x0c"]), max_size=8
).map("".join)


def plain_lines(text: str) -> list[str]:
    return re.split("\r\n|\r|\n", text)


def offset_of(text: str, line: int, column: int) -> int:
    starts = [0] + [match.end() for match in re.finditer("\r\n|\r|\n", text)]
    return starts[line] + column


@settings(max_examples=150, deadline=None)
@given(start=PIECES, edits=st.lists(st.tuples(st.randoms(use_true_random=False), PIECES), max_size=6))
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_u27_edits_in_place_equal_edits_of_one_string(encoding, start, edits):
    text = join_surrogates(start)
    document = Document.from_text("file:///a", text)
    for version, (random, new) in enumerate(edits, 1):
        lines = plain_lines(text)
        places = sorted((line := random.randrange(len(lines)), random.randint(0, len(lines[line]))) for _ in range(2))
        at, to = (offset_of(text, *place) for place in places)
        ends = [(line, units_of(lines[line], column, encoding)) for line, column in places]
        assert document.apply([Change(new, *ends)], version, encoding)
        text = join_surrogates(text[:at] + new + text[to:])
        assert document.text() == text
        assert list(document.snapshot().source.lines) == plain_lines(text)


def test_a_snapshot_never_changes():
    document = Document.from_text("file:///a", "one\ntwo\n")
    before = document.snapshot()
    document.apply([Change("zero\n", (0, 0), (0, 0))], 1, "utf-16")
    assert str(before.source) == "one\ntwo\n"
    assert str(document.snapshot().source) == "zero\none\ntwo\n"


@pytest.mark.parametrize(
    ("text", "line_end"), [("a", "\n"), ("a\r\nb\r\nc\n", "\r\n"), ("a\rb\rc", "\r"), ("a\nb", "\n")]
)
def test_u26_the_documents_own_line_end_is_the_one_it_uses_most(text, line_end):
    assert Document.from_text("file:///a", text).snapshot().line_end == line_end


def test_u27_positions_outside_the_document_are_clamped():
    document = Document.from_text("file:///a", "ab\ncd")
    assert document.apply([Change("X", (9, 9), (99, 0)), Change("Y", (0, 99), (0, 50))], 1, "utf-16")
    assert document.text() == "abY\ncdX"


def test_u29_a_repeated_or_reordered_version_is_not_trusted_until_the_whole_text_comes():
    document = Document.from_text("file:///a", "", version=5)
    assert document.apply([Change("b", (0, 0), (0, 0))], 9, "utf-16")  # versions may leave numbers out
    assert not document.apply([Change("a", (0, 0), (0, 0))], 8, "utf-16")
    assert not document.apply([Change("c", (0, 0), (0, 0))], 10, "utf-16")
    assert document.apply([Change("whole")], 11, "utf-16")
    assert document.text() == "whole"


@pytest.mark.parametrize(
    "line", ["x = 1  # filler filler filler filler\n", "漢字 = '😀'  # filler\r\n", "y" * 60_000 + "\n"]
)
def test_u28_a_change_costs_by_its_lines_and_not_by_the_file(line):
    document = Document.from_text("file:///a", line * (10_000_000 // len(line)))
    middle = len(document.snapshot().source.lines) // 2
    times = []
    for version in range(1, 101):
        began = time.perf_counter()
        document.apply([Change("ab\n" if version % 10 == 0 else "a", (middle, 1), (middle, 1))], version, "utf-16")
        times.append(time.perf_counter() - began)
    # The median of 100: the bound is ten times what it takes, so that only a cost that follows the file breaks it.
    assert sorted(times)[50] < 0.01


def test_documents_stand_in_the_order_of_their_use():
    store = DocumentStore()
    for name in "abc":
        store.open(name, "", 1)
    store.focus("a")
    store.close("b")
    assert [document.uri for document in store] == ["c", "a"]


@pytest.mark.parametrize(
    ("changes", "several"),
    [
        ([Change("a", (3, 1), (3, 1)), Change("a", (1, 1), (1, 1))], True),
        ([Change("", (3, 1), (3, 2)), Change("", (3, 0), (3, 0)), Change("", (1, 0), (1, 0))], True),
        ([Change("a", (1, 1), (1, 1)), Change("a", (1, 2), (1, 2))], False),  # typed: aa
        ([Change("\n", (1, 1), (1, 1)), Change("\n", (2, 0), (2, 0))], False),
        ([Change("", (1, 4), (1, 5)), Change("", (1, 3), (1, 4))], False),  # deleted backwards
        ([Change("b", (3, 1), (3, 1)), Change("a", (1, 1), (1, 1))], False),
        ([Change("whole"), Change("whole")], False),
        ([Change("a", (1, 1), (1, 1))], False),
    ],
)
def test_u48_the_same_change_in_several_places_is_that_of_several_cursors(changes, several):
    document = Document.from_text("file:///a", "line of text\n" * 5)
    document.apply(changes, 1, "utf-16")
    assert document.several_cursors is several
