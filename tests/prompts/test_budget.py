"""The prompt's budget: within the model's context, and within what is prefilled in two seconds."""

import pytest

from prompts.budget import BudgetKeeper


def keeper(context=4096, rate=1000.0):
    budget = BudgetKeeper()
    budget.engine(context, rate)
    return budget


def test_the_budget_is_two_seconds_of_prefill():
    assert keeper(rate=700.0).budget(64).tokens == 1400


def test_the_budget_stays_within_the_context_and_leaves_room_for_the_answer():
    assert keeper(context=1024, rate=9000.0).budget(100).tokens <= 1024 - 100


def test_a_slow_machine_still_gets_some_context():
    assert keeper(rate=3.0).budget(64).tokens == 256


def test_u05_a_context_shorter_than_the_answer_leaves_no_budget():
    assert keeper(context=128).budget(300).tokens <= 0


@pytest.mark.parametrize("rate", [700.0, 1500.0])
def test_the_budget_rests_while_the_measured_rate_swings(rate):
    budget = keeper(rate=1000.0)
    before = budget.budget(64)
    for _ in range(9):
        budget.measured(prefilled=500, rate=rate, texts=[], tokens=[])
        assert budget.budget(64) == before


@pytest.mark.parametrize("rate", [300.0, 1850.0])
def test_the_budget_follows_a_rate_that_is_far_off(rate):
    budget = keeper(rate=1000.0)
    budget.budget(64)
    for _ in range(20):
        budget.measured(prefilled=500, rate=rate, texts=[], tokens=[])
        now = budget.budget(64)
    assert 0.59 < now.tokens / (2 * rate) < 1.71


def test_a_few_prefilled_tokens_say_nothing_about_the_rate():
    budget = keeper(rate=1000.0)
    for _ in range(9):
        budget.measured(prefilled=5, rate=20.0, texts=[], tokens=[])
    assert budget.budget(64).tokens == 2000


def test_the_ratio_of_bytes_to_tokens_follows_what_the_engine_counted():
    budget = keeper()
    for _ in range(9):
        budget.measured(prefilled=0, rate=0.0, texts=["漢" * 300, "x" * 100], tokens=[400, 100])
    assert 1.9 < budget.budget(64).bytes_per_token < 2.1


def test_a_prompt_beyond_the_context_makes_the_next_one_shorter():
    budget = keeper()
    before = budget.budget(64).bytes
    budget.overflowed()
    assert budget.budget(64).bytes <= before / 2


def test_another_engine_or_another_limit_is_counted_with_at_once():
    budget = keeper(context=4096, rate=10_000.0)
    assert budget.budget(64).tokens - budget.budget(264).tokens == 200
    budget.engine(2048, 10_000.0)
    assert budget.budget(64).tokens < 2048
