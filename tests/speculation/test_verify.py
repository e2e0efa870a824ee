"""Verification is exact: the law of the tokens is that of the target model, whatever was drafted."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from goodness import g_test
from torch import Tensor

from server.request import SamplingParams
from server.speculation.sampling import Sampler
from server.speculation.verify import verify

Verifier = Callable[[Tensor, list[int], Sampler], list[int]]
LOGITS = torch.tensor([[1.0, 0.3, -0.5, 0.0], [0.0, 1.5, 0.2, -1.0], [0.3, 0.1, 0.0, 0.6]])
SAMPLED = SamplingParams(temperature=0.9, seed=11)
DRAWS = 5000


def target_law(params: SamplingParams, drafts: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of each result: the target's own tokens up to the first that isn't the draft."""
    law: dict[tuple[int, ...], float] = {}
    reach = 1.0
    sampler = Sampler(params, [], LOGITS.shape[1])
    for row, logits in enumerate(LOGITS):
        row_law = sampler.distribution(logits).tolist()
        for token, probability in enumerate(row_law):
            if row == len(drafts) or token != drafts[row]:
                law[(*drafts[:row], token)] = reach * probability
        if row < len(drafts):
            reach *= row_law[drafts[row]]
            sampler.accept(drafts[row])
    return {outcome: p for outcome, p in law.items() if p > 0}


def fit(verifier: Verifier, drafts: list[int], params: SamplingParams = SAMPLED) -> float:
    sampler = Sampler(params, [], LOGITS.shape[1])
    penalised = sampler.penalised
    results: Counter = Counter()
    for draw in range(DRAWS):
        if penalised:
            sampler = Sampler(SamplingParams(**{**vars(params), "seed": draw}), [], LOGITS.shape[1])
        results[tuple(verifier(LOGITS, drafts, sampler))] += 1
    return g_test(results, target_law(params, drafts))


@pytest.mark.parametrize("drafts", [[0, 1], [2, 3]])
def test_sampled_tokens_have_the_targets_distribution(drafts: list[int]) -> None:
    assert fit(verify, drafts) > 1e-3


def test_sampled_tokens_have_the_targets_distribution_with_penalties_and_filters() -> None:
    params = SamplingParams(temperature=0.9, top_k=3, presence_penalty=1.0, frequency_penalty=0.5)
    assert fit(verify, [1, 1], params) > 1e-3


def accepts_too_much(logits: Tensor, drafts: list[int], sampler: Sampler) -> list[int]:
    """Planted: a draft is accepted with its probability relative to the best token's."""
    tokens = []
    for row, draft in enumerate(drafts):
        law = sampler.distribution(logits[row])
        if sampler._random.random() < float(law[draft] / law.max()):
            tokens.append(draft)
            continue
        law[draft] = 0
        return [*tokens, int(torch.multinomial(law, 1))]
    return [*tokens, sampler.choose(logits[-1])]


def samples_the_draft_again(logits: Tensor, drafts: list[int], sampler: Sampler) -> list[int]:
    """Planted: after a rejection, the token comes from the target without the draft taken out."""
    tokens = []
    for row, draft in enumerate(drafts):
        law = sampler.distribution(logits[row])
        if sampler._random.random() < float(law[draft]):
            tokens.append(draft)
            continue
        return [*tokens, sampler.choose(logits[row])]
    return [*tokens, sampler.choose(logits[-1])]


def bonus_is_greedy(logits: Tensor, drafts: list[int], sampler: Sampler) -> list[int]:
    """Planted: the token after the last accepted draft is the best one."""
    tokens = verify(logits, drafts, sampler)
    return [*tokens[:-1], int(logits[-1].argmax())] if len(tokens) == len(logits) else tokens


@pytest.mark.parametrize("biased", [accepts_too_much, samples_the_draft_again, bonus_is_greedy])
def test_a_biased_verifier_is_noticed(biased: Verifier) -> None:
    torch.manual_seed(0)
    assert fit(biased, [0, 1]) < 1e-6


@pytest.mark.parametrize("accepted", range(8))
def test_greedy_accepts_up_to_the_first_wrong_draft(accepted: int) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(accepted))
    best = logits.argmax(dim=1).tolist()
    drafts = best[:7]
    if accepted < 7:
        drafts[accepted] = (drafts[accepted] + 1) % 50
    assert verify(logits, drafts, Sampler(SamplingParams(), [], 50)) == best[: accepted + 1]


def test_no_drafts_give_one_token() -> None:
    assert verify(LOGITS[:1], [], Sampler(SamplingParams(), [], 4)) == [0]


def test_nothing_follows_an_end_token() -> None:
    best = LOGITS.argmax(dim=1).tolist()
    assert verify(LOGITS, best[:2], Sampler(SamplingParams(), [], 4), end_tokens={best[1]}) == best[:2]


def test_penalties_of_each_row_count_the_drafts_before_it() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 4)
    params = SamplingParams(frequency_penalty=0.9)
    one_by_one = Sampler(params, [], 3)
    wanted = []
    for row in logits:
        wanted.append(one_by_one.choose(row))
        one_by_one.accept(wanted[-1])
    assert wanted == [0, 0, 1, 0]
    assert verify(logits, wanted[:3], Sampler(params, [], 3)) == wanted


def test_a_seed_gives_the_same_tokens_for_every_draft() -> None:
    rows = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    results = set()
    for drafts in itertools.product(range(3), repeat=2):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=5), [], 6)
        tokens: list[int] = []
        while len(tokens) < 5:
            at = len(tokens)
            guess = list(drafts)[: 4 - at]
            tokens += verify(rows[at : at + 1 + len(guess)], guess, sampler)
        results.add(tuple(tokens))
    assert len(results) == 1


def test_rows_and_drafts_must_fit() -> None:
    with pytest.raises(ValueError, match="2 drafts need 3 rows"):
        verify(LOGITS[:2], [0, 1], Sampler(SamplingParams(), [], 4))
