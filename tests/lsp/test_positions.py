"""Columns: the editor's units and code points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsp.positions import column_of, join_surrogates, units_of

ENCODINGS = ["utf-8", "utf-16", "utf-32"]
CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
CHARACTERS = st.text(st.sampled_from("aé漢😀e\u0301\U0001f468\u200d\ud83d\ude00\ufffd"), max_size=12).map(
    join_surrogates
)


def plain_units(text: str, encoding: str) -> int:
    codec, width = CODECS[encoding]
    return len(text.encode(codec, "surrogatepass")) // width


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(line=CHARACTERS, data=st.data())
def test_u27_every_column_survives_the_way_to_the_editor_and_back(encoding, line, data):
    column = data.draw(st.integers(0, len(line)))
    units = units_of(line, column, encoding)
    assert units == plain_units(line[:column], encoding)
    assert column_of(line, units, encoding) == column


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(line=CHARACTERS, units=st.integers(-3, 60))
def test_u27_any_position_is_the_last_whole_character_before_it(encoding, line, units):
    fits = [column for column in range(len(line) + 1) if plain_units(line[:column], encoding) <= max(units, 0)]
    assert column_of(line, units, encoding) == max(fits)


def test_u27_halves_of_an_emoji_that_meet_become_one_character():
    assert join_surrogates("a\ud83d" + "\ude00b") == "a😀b"
    assert join_surrogates("a\ud83db") == "a\ud83db"
    assert join_surrogates("\ude00\ud83d") == "\ude00\ud83d"
