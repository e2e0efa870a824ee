"""U33: the wait before a request that typing caused follows the typing and the engine, within a bound that is set."""

import pytest

from lsp.debounce import FIRST_MS, LONGEST_MS, Debounce


def typed(gap_ms, answer_ms, keys=12):
    debounce = Debounce()
    for number in range(keys):
        debounce.key(number * gap_ms / 1000)
        debounce.answered(answer_ms)
    return debounce


def test_u33_an_engine_that_answers_between_two_keys_is_asked_at_once():
    assert typed(gap_ms=90, answer_ms=40).wait_ms("auto") == 0


def test_u33_a_slower_engine_is_asked_when_the_next_key_did_not_come():
    assert typed(gap_ms=90, answer_ms=400).wait_ms("auto") == pytest.approx(112.5)
    assert typed(gap_ms=60, answer_ms=400).wait_ms("auto") == pytest.approx(75)


@pytest.mark.parametrize(("setting", "wait"), [("auto", LONGEST_MS), (100, 100), (0, 0)])
def test_u33_the_wait_has_a_bound(setting, wait):
    assert typed(gap_ms=300, answer_ms=900).wait_ms(setting) == wait


@pytest.mark.parametrize(("setting", "wait"), [("auto", FIRST_MS), (400, 400), (5, 5), (0, 0)])
def test_u33_before_anything_is_measured_the_setting_alone_decides(setting, wait):
    assert Debounce().wait_ms(setting) == wait


def test_u33_a_pause_is_no_part_of_the_rhythm():
    debounce = typed(gap_ms=80, answer_ms=400)
    debounce.key(60)
    debounce.key(60.08)
    assert debounce.wait_ms("auto") == pytest.approx(100)


def test_u33_the_rhythm_is_followed_as_it_changes():
    debounce = typed(gap_ms=100, answer_ms=50)
    assert debounce.wait_ms("auto") == 0
    for _ in range(20):
        debounce.answered(500)
    assert debounce.wait_ms("auto") == pytest.approx(125)
