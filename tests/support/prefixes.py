"""Prompts served from a prefix cache, on a model whose every state is known."""

import random

from fake_model import FakeModel, FakeState

from server.cache.prefix import PrefixCache, prefill_step

PLENTY = 10**9


def serve(
    model: FakeModel, cache: PrefixCache, ids: list[int], checkpoints: tuple[int, ...] = (), answer: int = 0
) -> tuple[FakeState, int, int]:
    """Prefill ``ids`` and decode some tokens: the state, tokens reused and tokens prefilled."""
    sequence, reused = cache.take(ids, checkpoints)
    assert sequence.state.tokens == ids[:reused], "the state holds exactly what is reused"
    prefilled = 0
    while step := prefill_step(model, sequence, ids, checkpoints):
        prefilled += step
    copy = sequence.state.copy()
    for token in range(answer):
        model.decode([token % 5], sequence.state)
        sequence.state.rollback(1)
        model.mtp_fill([token % 5], sequence.state.last_hidden[None], sequence.state)
    cache.give_back(sequence)
    return copy, reused, prefilled


def cold(model: FakeModel, ids: list[int], checkpoints: tuple[int, ...] = ()) -> FakeState:
    return serve(model, PrefixCache(model.new_state, PLENTY), ids, checkpoints)[0]


def same(first: FakeState, second: FakeState) -> bool:
    return (
        first.tokens == second.tokens
        and first.way == second.way
        and (first.recurrent, first.window, first.mtp) == (second.recurrent, second.window, second.mtp)
        and first.last_hidden.tolist() == second.last_hidden.tolist()
    )


def check_warm_is_cold(model: FakeModel, seed: int = 0, far_budget: int = 0) -> None:
    """Prompts that branch off each other everywhere give the state of a fresh prefill, computed in the same way."""
    rng = random.Random(seed)
    cache = PrefixCache(model.new_state, 20000, far_budget=far_budget)
    prompts = [[rng.randrange(8) for _ in range(900)]]
    for _ in range(30):
        base = rng.choice(prompts)
        at = rng.randrange(len(base))
        ids = base[:at] + [rng.randrange(8) for _ in range(rng.randrange(1, 400))]
        prompts.append(ids)
        checkpoints = tuple(rng.randrange(len(ids)) for _ in range(3))
        state, reused, prefilled = serve(model, cache, ids, checkpoints, rng.randrange(20))
        assert reused + prefilled == len(ids)
        assert same(state, cold(model, ids, checkpoints))
        assert cache.nbytes <= 20000
        assert cache.far_nbytes <= far_budget
