"""What a GPU's memory doesn't hold goes to the host's, and is as good there."""

from __future__ import annotations

import pytest
from fake_model import FakeModel
from prefixes import PLENTY, check_warm_is_cold, serve

from server.cache.prefix import PrefixCache

TEXTS = [[(n * (text + 3) + text) % 8 for n in range(1500)] for text in range(6)]


@pytest.mark.parametrize("far_budget", [3000, 30_000, PLENTY])
def test_branching_prompts_give_the_states_of_fresh_ones(far_budget: int) -> None:
    check_warm_is_cold(FakeModel(), 5, far_budget)


def test_what_is_sent_away_is_reused_as_if_it_were_near() -> None:
    model = FakeModel()
    alone, both = (PrefixCache(model.new_state, 20_000, far_budget=far) for far in (0, PLENTY))
    for cache in (alone, both):
        for text in TEXTS:
            serve(model, cache, text)
    assert both.far_nbytes > 3 * alone.nbytes
    assert both.nbytes <= 20_000
    for text in TEXTS:
        assert serve(model, both, [*text, 1])[2] == 1, "each of them goes on"
    assert min(serve(model, alone, [*text, 1])[1] for text in TEXTS) == 0, "and not all of them did without"


def test_the_hosts_budget_is_kept_by_what_is_worth_least() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, 20_000, far_budget=30_000)
    for text in TEXTS:
        serve(model, cache, text)
        assert cache.far_nbytes <= 30_000
    reused = [serve(model, cache, [*text, 1])[1] for text in reversed(TEXTS)]
    assert reused[0] == len(TEXTS[-1])
    assert reused[0] > min(reused)


def test_a_long_prompt_keeps_its_states_in_the_hosts_memory_while_it_runs() -> None:
    model, ids = FakeModel(), [n % 7 for n in range(1920)]
    kept = []
    for far in (0, PLENTY):
        sequence, _ = PrefixCache(model.new_state, 12_000, far_budget=far).take(ids)
        for length in range(64, len(ids), 64):
            model.prefill(ids[length - 64 : length], sequence.state)
            sequence.chunked = length
            sequence.keep(length)
        near = [state for state in sequence.states if not state.checkpoint.far]
        assert sum(state.checkpoint.nbytes for state in near) <= 6000
        kept.append(len(sequence.states))
    assert kept == [6, 29]
