"""Muon: which matrices it takes, and what it makes of a gradient."""

from __future__ import annotations

import pytest
import torch

from models.network import Dimensions, initial_weights
from models.optimiser import Muon, adamw, is_hidden_matrix, orthogonalise


@pytest.mark.parametrize("shape", [(3, 128, 128), (2, 96, 256), (2, 256, 96)])
def test_an_orthogonalised_matrix_has_singular_values_near_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 1e-4
    values = torch.linalg.svdvals(orthogonalise(x))
    assert values.max() < 1.3
    assert values.quantile(0.05) > 0.6  # a square Gaussian matrix has a singular value near zero
    assert values.min() > 0.6 or shape[-1] == shape[-2]


def test_an_orthogonalised_matrix_keeps_the_singular_vectors() -> None:
    x = torch.randn(1, 64, 96, generator=torch.Generator().manual_seed(1))
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    core = u.mT @ orthogonalise(x) @ v.mT
    assert (core - torch.diag_embed(core.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-3


def test_muon_takes_the_hidden_matrices_and_adamw_all_the_rest() -> None:
    weights = {name: w.requires_grad_() for name, w in initial_weights(Dimensions(vocab=512, layers=4), 0).items()}
    muon = {id(w) for group in Muon(weights).groups.values() for w in group}
    adam = {id(w) for group in adamw(weights, 1e-3).param_groups for w in group["params"]}
    assert not muon & adam
    assert muon | adam == {id(w) for w in weights.values()}
    endings = {name.split(".", 2)[-1] for name, w in weights.items() if id(w) in muon}
    assert endings == {
        *("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "attn_qkv.weight", "attn_gate.weight"),
        *("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ssm_out.weight"),
        "nextn.eh_proj.weight",
    }
    assert not is_hidden_matrix("token_embd.weight", weights["token_embd.weight"])


def test_a_step_goes_against_the_gradient_by_the_rate_whatever_the_gradients_size() -> None:
    for scale in (1e-6, 1.0):
        weight = torch.zeros(128, 512, requires_grad=True)
        weight.grad = torch.randn(128, 512, generator=torch.Generator().manual_seed(2)) * scale
        gradient = weight.grad.clone()
        Muon({"blk.0.ffn_up.weight": weight}).step(0.01)
        step = weight.detach()
        assert (step * gradient).sum() < 0
        # 128 singular values of about 0.01 · 0.2 · sqrt(512)
        assert float(step.norm()) == pytest.approx(128**0.5 * 0.01 * 0.2 * 512**0.5, rel=0.2)


def test_weights_decay_by_the_rate() -> None:
    weight = torch.full((64, 64), 2.0, requires_grad=True)
    weight.grad = torch.zeros(64, 64)
    Muon({"blk.0.ffn_up.weight": weight}, decay=0.1).step(0.5)
    assert torch.allclose(weight.detach(), torch.full((64, 64), 2.0 * (1 - 0.5 * 0.1)))
