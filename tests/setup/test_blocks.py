"""Our lines in files of other kinds: found again, replaced, and never beside somebody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.setup.blocks import CantEdit, with_block

OTHERS = st.text(st.characters(codec="utf-8", exclude_characters="\r")).filter(lambda t: "draftline" not in t.lower())


@given(OTHERS)
def test_what_was_there_stays_and_a_second_time_changes_nothing(text):
    once = with_block(text, ["one", "two"], "--")
    assert once.startswith(text)
    assert once.endswith("-- >>> draftline setup\none\ntwo\n-- <<< draftline setup\n")
    assert with_block(once, ["one", "two"], "--") == once


def test_other_lines_of_ours_take_the_place_of_the_old_ones():
    text = with_block("before\n", ["old"], "#") + "after\n"
    assert with_block(text, ["new"], "#") == text.replace("old", "new")


def test_a_file_with_crlf_keeps_it():
    assert "\n" not in with_block("a\r\nb\r\n", ["one", "two"], "--").replace("\r\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "require('draftline').setup {}\n",
        "-- >>> draftline setup\nold\n",
        "old\n-- <<< draftline setup\n",
        2 * "-- >>> draftline setup\nold\n-- <<< draftline setup\n",
        "-- >>> draftline setup\nold\n-- <<< draftline setup\nrequire('draftline')\n",
    ],
)
def test_a_file_that_somebody_changed_in_our_place_is_left_alone(text):
    with pytest.raises(CantEdit):
        with_block(text, ["new"], "--")
