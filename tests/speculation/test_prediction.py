"""Where an answer stands in the old text: behind whatever edit, what stands ahead is what is copied next."""

import random

import pytest

from server.speculation.prediction import LONGEST, LOOKED_AT, NEAR, Prediction

LINES = [
    [line, 900, *(10 * line + column for column in range(2 + line % 4)), 901 + line % 2, 999]
    for line in range(100, 112)
]
"""Tokens of twelve lines: all begin and end alike, and the tokens between are a line's own."""
OLD = [token for line in LINES for token in line]


def joined(*lines: list[int]) -> list[int]:
    return [token for line in lines for token in line]


def follow(old: list[int], new: list[int]) -> list[int]:
    """Lines of ``new`` are answered; what isn't foretold counts -> places in ``new`` of tokens that weren't."""
    prediction = Prediction(old)
    missed = []
    for place, token in enumerate(new):
        ahead = prediction.ahead(1)
        if ahead != [token]:
            missed.append(place)
        assert prediction.push(token) == (None if not ahead else ahead == [token])
    return missed


def test_an_answer_begins_as_the_old_text_does_and_goes_on_to_its_end() -> None:
    prediction = Prediction(OLD)
    assert prediction.ahead(15) == OLD[:15]
    for place, token in enumerate(OLD):
        assert prediction.ahead(15) == OLD[place : place + 15]
        assert prediction.push(token)
        assert prediction.run == place + 1
    assert prediction.ahead(15) == []
    assert prediction.push(5) is None


def test_nothing_stands_ahead_in_no_text() -> None:
    prediction = Prediction([])
    for token in (1, 2, 1):
        assert prediction.ahead(15) == []
        assert prediction.push(token) is None


INSERTED = [[77, 900, 78, 79, 903, 999]]
EDITS = {
    "an insertion": (joined(*LINES[:5], *INSERTED, *LINES[5:]), range(1, 8)),
    "an insertion at the beginning": (joined(*INSERTED, *LINES), range(1, 8)),
    "a deletion": (joined(*LINES[:4], *LINES[7:]), range(1, 2)),
    "a deletion of the beginning": (joined(*LINES[3:]), range(1, 2)),
    "a replaced line": (joined(*LINES[:5], *INSERTED, *LINES[6:]), range(1, 9)),
    "a replaced token": (joined(*LINES[:5], [*LINES[5][:2], 77, *LINES[5][3:]], *LINES[6:]), range(1, 3)),
    "a moved block": (joined(*LINES[:2], *LINES[6:9], *LINES[2:6], *LINES[9:]), range(1, 4)),
}


@pytest.mark.parametrize("name", EDITS)
def test_copying_goes_on_behind(name: str) -> None:
    """The new tokens can't be foretold; behind them one or two more are lost, and then nothing."""
    new, allowed = EDITS[name]
    assert len(follow(OLD, new)) in allowed


def test_a_name_that_changes_everywhere_costs_the_name_and_the_token_behind() -> None:
    old = joined(*([*line[:2], 55, *line[2:]] for line in LINES))
    new = [56 if token == 55 else token for token in old]
    missed = follow(old, new)
    names = [place for place, token in enumerate(new) if token == 56]
    assert set(names) <= set(missed) <= {*names, *(place + 1 for place in names)}


def test_of_equal_matches_the_nearest_to_where_copying_stopped_is_taken() -> None:
    """Twenty lines are the same: a token put into one of them doesn't lead to another."""
    line = [1, 2, 3, 4, 999]
    old = joined(*([[500 + n, *line] for n in range(20)]))
    new = list(old)
    new.insert(old.index(510) + 3, 77)  # 510 1 2 77 3 4 999 511
    missed = follow(old, new)
    at = new.index(77)
    assert missed == [at, at + 1]


def test_repeated_lines_are_told_apart_by_what_stands_before_them() -> None:
    same = [1, 2, 3, 4, 999]
    old = joined([10], same, [20, 21, 22], same, [30, 31, 32], same, [40, 41])
    new = joined([10], same, [30, 31, 32], same, [40, 41])
    missed = follow(old, new)
    assert missed == [new.index(30)]


def test_the_longest_match_wins_against_a_nearer_one() -> None:
    old = [1, 2, 3, 4, 5, *range(100, 120), 9, 3, 4, 6, *range(200, 220)]
    prediction = Prediction(old)
    for token in [1, 2, 3, 4, 5, 100, 101, 77, 9, 3, 4]:
        prediction.push(token)
    assert prediction.ahead(2) == [6, 200]


def test_a_single_token_far_from_where_copying_stopped_is_no_match() -> None:
    old = [*range(100, 100 + NEAR + 10), 7, *range(300, 310)]
    prediction = Prediction(old)
    prediction.push(100)
    prediction.push(7)
    assert prediction.ahead(5) == []
    near = Prediction(old[10:])
    near.push(old[10])
    near.push(7)
    assert near.ahead(2) == [300, 301]


def test_no_more_tokens_are_given_than_asked_for() -> None:
    prediction = Prediction(OLD)
    for limit in (0, 1, 7, 15, len(OLD) + 5):
        assert prediction.ahead(limit) == OLD[:limit]


def test_the_run_is_the_length_of_the_match() -> None:
    rng = random.Random(1)
    for _ in range(300):
        old = [rng.randrange(4) for _ in range(rng.randrange(40))]
        prediction, answer = Prediction(old), []
        for _ in range(40):
            token = rng.randrange(4)
            answer.append(token)
            prediction.push(token)
            if prediction.run:
                assert prediction.run <= len(answer)
                rest = prediction.ahead(len(old))
                assert old[: len(old) - len(rest)][-prediction.run :] == answer[-prediction.run :]
                assert old[len(old) - len(rest) :] == rest


def test_a_token_of_many_places_takes_no_longer_than_one_of_some() -> None:
    """Hundreds of thousands: only so many places are looked at."""
    prediction = Prediction([1, 2] * 200_000)
    seen = 0

    def counted(place: int, before: list[int]) -> int:
        nonlocal seen
        seen += 1
        return Prediction._matching(prediction, place, before)

    prediction._matching = counted  # type: ignore[method-assign]
    for token in [1, 2, 2, 1, 1] * 4:
        prediction.push(token)
    assert 0 < seen <= 20 * 2 * LOOKED_AT
    assert LONGEST >= 8
