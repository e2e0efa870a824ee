"""Stop strings against their plain definition, on every way of cutting a text into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.stop_strings import StopStrings

LETTERS = st.text("ab🙂\n", min_size=1, max_size=6)


@given(st.lists(LETTERS, max_size=12), st.lists(LETTERS, min_size=1, max_size=4))
def test_text_is_shown_exactly_when_no_stop_string_can_begin_in_it(pieces: list[str], strings: list[str]) -> None:
    rule = StopStrings(strings)
    text = ""
    for piece in pieces:
        text += piece
        begins = [i for i in range(len(text)) if any(text.startswith(s, i) for s in strings)]
        assert rule(text) == min(begins, default=None)
        if begins:
            return
        held = [i for i in range(len(text)) if any(s.startswith(text[i:]) for s in strings)]
        assert rule.settled(text) == min(held, default=len(text))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("character", ["a", "b"])
def test_long_stop_strings_cost_no_more_than_short_ones(character: str) -> None:
    """They are the client's choice, and the engine's one worker must not stand still over them."""
    rule = StopStrings([character * 1_000_000] * 16)
    text = "a" * 4000
    for length in range(1, len(text)):
        assert rule(text[:length]) is None
        assert rule.settled(text[:length]) == (0 if character == "a" else length)
