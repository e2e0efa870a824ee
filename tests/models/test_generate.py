"""Greedy continuations with caches are those of whole forwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lively_weights import lively_weights

from models.delta_rule import chunk_delta_rule
from models.generate import greedy
from models.network import REHEARSAL, Network, Weights

DIMS = replace(REHEARSAL, vocab=512)
PROMPT, COUNT = 64, 16


@pytest.fixture(scope="module")
def weights() -> Weights:
    return lively_weights(DIMS)


@torch.no_grad()
def test_every_token_is_the_choice_of_a_forward_over_all_tokens_before_it(weights: Weights) -> None:
    network = Network(DIMS, chunk_delta_rule, "cpu", PROMPT + 64, compile=False)
    prompts = torch.randint(0, DIMS.vocab, (3, PROMPT), generator=torch.Generator().manual_seed(5))
    ids = greedy(network, weights, prompts, COUNT)
    assert ids.shape == (3, COUNT)
    # No row sees a later token, so one forward gives every choice; zeros fill it up to a multiple of 64.
    whole = torch.cat((prompts, ids, torch.zeros(3, 64 - COUNT, dtype=torch.long)), 1)
    logits = network.hidden(weights, whole) @ weights["token_embd.weight"].T
    chosen = logits[:, PROMPT - 1 : PROMPT + COUNT - 1]
    top = chosen.topk(2).values
    assert (top[..., 0] - top[..., 1]).min() > 1e-3  # rounding decides nothing
    assert torch.equal(ids, chosen.argmax(-1))
    assert len(ids.unique()) > COUNT


@torch.no_grad()
def test_a_continuation_depends_on_its_own_prompt_only(weights: Weights) -> None:
    network = Network(DIMS, chunk_delta_rule, "cpu", PROMPT + 64, compile=False)
    prompts = torch.randint(0, DIMS.vocab, (3, PROMPT), generator=torch.Generator().manual_seed(6))
    together = greedy(network, weights, prompts, 8)
    alone = torch.cat([greedy(network, weights, prompt[None], 8) for prompt in prompts])
    assert torch.equal(together, alone)
    assert len({tuple(row) for row in together.tolist()}) == 3
