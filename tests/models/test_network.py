"""Training and inference compute the same function: random weights, exported, against ``server/model``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lively_weights import lively_weights

from models.delta_rule import chunk_delta_rule
from models.export import export
from models.network import REHEARSAL, Network, Weights, mtp_input, weighted_loss
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.model.hybrid import HybridModel

DIMS = replace(REHEARSAL, vocab=512)
LENGTH = 192


@pytest.fixture(scope="module")
def weights() -> Weights:
    return lively_weights(DIMS)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(DIMS, chunk_delta_rule, "cpu", LENGTH, compile=False)


@pytest.fixture(scope="module")
def model(weights: Weights, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> HybridModel:
    path = tmp_path_factory.mktemp("model") / "f32.gguf"
    export(weights, tokenizer_path, path, DIMS, lambda name, w: TensorType.F32)
    return HybridModel.load(ModelFile.open(path))


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return torch.randint(0, DIMS.vocab, (LENGTH,), generator=torch.Generator().manual_seed(5)).tolist()


@torch.no_grad()
def test_hidden_states_and_logits_equal_those_of_inference(
    weights: Weights, network: Network, model: HybridModel, ids: list[int]
) -> None:
    hidden = network.hidden(weights, torch.tensor([ids]))[0]
    expected = model.prefill(ids, model.new_state())
    assert (hidden - expected).abs().max() < 1e-3
    logits = hidden @ weights["token_embd.weight"].T
    assert (logits - model.logits(expected)).abs().max() < 1e-3
    assert expected.std() > 0.5
    assert logits.std() > 0.5


@torch.no_grad()
def test_the_prediction_heads_rows_equal_those_of_inference(
    weights: Weights, network: Network, model: HybridModel, ids: list[int]
) -> None:
    hidden = network.hidden(weights, torch.tensor([ids]))
    drafts = network.draft_hidden(weights, torch.tensor([ids]), hidden)[0]
    state = model.new_state()
    previous = torch.cat((torch.zeros_like(hidden[0, :1]), hidden[0, :-1]))
    rows = [model.mtp_rows(ids[i : i + 8], previous[i : i + 8], state) for i in range(0, LENGTH, 8)]
    assert (drafts - torch.cat(rows)).abs().max() < 1e-3
    assert (drafts[1:] - hidden[0, :-1]).abs().max() > 0.1


@torch.no_grad()
def test_a_draft_in_training_is_the_draft_of_inference(
    weights: Weights, network: Network, model: HybridModel, ids: list[int]
) -> None:
    hidden = network.hidden(weights, torch.tensor([ids]))
    last = network.draft_hidden(weights, torch.tensor([ids]), hidden)[0, -1] @ weights["token_embd.weight"].T
    state = model.new_state()
    model.prefill(ids[:-1], state)
    row = model.mtp_rows(ids[-1:], state.last_hidden[None], state)
    assert model.draft_token(int(model.draft_logits(row).argmax())) == int(last.argmax())
    assert (model.draft_logits(row)[0] - last).abs().max() < 1e-3


@torch.no_grad()
def test_no_row_sees_a_later_token(weights: Weights, network: Network, ids: list[int]) -> None:
    changed = [*ids[:100], *reversed(ids[100:])]
    both = network.hidden(weights, torch.tensor([ids, changed]))
    drafts = network.draft_hidden(weights, torch.tensor([ids, changed]), both)
    for rows in (both, drafts):
        assert (rows[0, :100] - rows[1, :100]).abs().max() < 1e-5
        assert (rows[0, 101:] - rows[1, 101:]).abs().max() > 0.1


def test_the_heads_input_joins_a_token_with_the_hidden_state_before_it() -> None:
    hidden, embedded = torch.randn(2, 1, 5, 4, generator=torch.Generator().manual_seed(1)).unbind(0)
    ones = torch.ones(4)
    take_hidden = torch.cat((torch.zeros(4, 4), torch.eye(4)), 1)
    rows = mtp_input(embedded, hidden, ones, ones, take_hidden, 1e-6)[0]
    assert rows[0].abs().max() == 0
    assert torch.nn.functional.cosine_similarity(rows[1:], hidden[0, :-1]).min() > 0.999


def test_the_loss_is_the_weighted_mean_of_cross_entropies_plus_the_normalisers_square() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden, embedding = torch.randn(1, 3, 8, generator=generator), torch.randn(16, 8, generator=generator)
    targets, weight = torch.tensor([[3, 0, 15]]), torch.tensor([[1.0, 3.0, 1.0]])
    logits = hidden[0] @ embedding.T
    nll = torch.nn.functional.cross_entropy(logits, targets[0], reduction="none")
    square = logits.logsumexp(-1).square()
    expected = ((nll + 0.1 * square) * weight[0]).sum() / 5
    assert torch.allclose(weighted_loss(hidden, embedding, targets, weight, 0.1), expected)
