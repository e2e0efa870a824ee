"""The distribution that the sampling parameters describe, against plain loops, and the draw from it."""

import math
import random
from collections import Counter

import pytest
import torch
from goodness import g_test
from hypothesis import given, settings
from hypothesis import strategies as st

from server.request import SamplingParams
from server.speculation.sampling import InvalidSampling, NotFiniteLogits, Sampler, check_sampling


def by_hand(logits: list[float], params: SamplingParams, prompt: list[int], answer: list[int]) -> list[float]:
    """The specification in plain loops: penalties, temperature, top-k, top-p, min-p."""
    values = list(logits)
    for token in set(prompt) | set(answer):
        factor = params.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token in set(answer):
        values[token] -= params.frequency_penalty * answer.count(token) + params.presence_penalty
    values = [v / params.temperature for v in values]
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if params.top_k:
        order = order[: params.top_k]
    top = values[order[0]]
    weights = {i: math.exp(values[i] - top) for i in order}
    total = sum(weights.values())
    kept, mass = [], 0.0
    for i in order:
        if kept and mass >= params.top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    kept = [i for i in kept if weights[i] >= params.min_p * weights[order[0]]]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(values))]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6))
def test_distribution_is_the_specified_one(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 40)
    logits = [rng.gauss(0, 3) for _ in range(size)]
    prompt = [rng.randrange(size) for _ in range(rng.randint(0, 5))]
    answer = [rng.randrange(size) for _ in range(rng.randint(0, 8))]
    params = SamplingParams(
        temperature=rng.choice([0.3, 0.7, 1.0, 1.7]),
        top_k=rng.choice([0, 1, 3, size, size + 5]),
        top_p=rng.choice([1.0, 0.95, 0.5, 0.01]),
        min_p=rng.choice([0.0, 0.05, 0.3, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.3, 0.8]),
        presence_penalty=rng.choice([0.0, 0.5, -0.4]),
        frequency_penalty=rng.choice([0.0, 0.2]),
    )
    sampler = Sampler(params, prompt, size)
    for token in answer:
        sampler.accept(token)
    got = sampler.distribution(torch.tensor(logits, dtype=torch.float64))
    wanted = torch.tensor(by_hand(logits, params, prompt, answer), dtype=torch.float64)
    assert torch.allclose(got, wanted, atol=1e-6)


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.tensor([0.0, 2.0, 2.0, 1.0, 2.0])
    assert Sampler(SamplingParams(), [], 5).choose(logits) == 1
    assert Sampler(SamplingParams(temperature=1.0, top_k=1), [], 5).choose(logits) == 1


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=2), [], 4)
    assert sampler.distribution(torch.zeros(4)).tolist() == [0.5, 0.5, 0.0, 0.0]


def test_presence_and_frequency_ignore_the_prompt_and_repetition_does_not() -> None:
    logits = torch.tensor([1.0, 1.0])
    assert Sampler(SamplingParams(presence_penalty=1, frequency_penalty=1), [0, 0], 2).choose(logits) == 0
    assert Sampler(SamplingParams(repetition_penalty=1.5), [0], 2).choose(logits) == 1


def test_greedy_answers_obey_penalties() -> None:
    sampler = Sampler(SamplingParams(frequency_penalty=0.4), [], 3)
    chosen = []
    for _ in range(6):
        chosen.append(sampler.choose(torch.tensor([1.0, 0.7, 0.1])))
        sampler.accept(chosen[-1])
    assert chosen == [0, 1, 0, 1, 0, 2]


def test_draws_have_the_distribution_and_a_biased_one_is_noticed() -> None:
    params = SamplingParams(temperature=0.8, top_k=6, top_p=0.97, min_p=0.01, seed=3)
    logits = torch.tensor([1.0, 0.2, -0.5, 0.9, 0.0, -1.0, 0.4, -2.0])
    sampler = Sampler(params, [], 8)
    expected = {i: p for i, p in enumerate(sampler.distribution(logits).tolist()) if p > 0}
    drawn = Counter(sampler.choose(logits) for _ in range(4000))
    assert g_test(drawn, expected) > 1e-3
    colder = Sampler(SamplingParams(temperature=0.6, top_k=6, top_p=0.97, min_p=0.01, seed=3), [], 8)
    assert g_test(Counter(colder.choose(logits) for _ in range(4000)), expected) < 1e-3


def test_equal_seeds_draw_equal_tokens_and_no_seed_draws_others() -> None:
    logits = torch.zeros(1000)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), [], 1000)
        return [sampler.choose(logits) for _ in range(20)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)
    assert draws(None) != draws(None)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1.0])
def test_logits_that_are_not_numbers_are_an_error(temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature), [], 3)
    with pytest.raises(NotFiniteLogits):
        sampler.choose(torch.tensor([0.0, float("nan"), 1.0]))
    with pytest.raises(NotFiniteLogits):
        sampler.choose(torch.full((3,), -math.inf))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=-1),
        SamplingParams(temperature=math.nan),
        SamplingParams(top_k=-1),
        SamplingParams(top_p=0),
        SamplingParams(top_p=1.1),
        SamplingParams(min_p=-0.1),
        SamplingParams(repetition_penalty=0),
        SamplingParams(presence_penalty=math.inf),
        SamplingParams(frequency_penalty=math.nan),
    ],
)
def test_a_parameter_out_of_range_is_named(params: SamplingParams) -> None:
    with pytest.raises(InvalidSampling, match=r"\w+ is .*, but it must be "):
        check_sampling(params)
