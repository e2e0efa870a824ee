"""The chunk form of the gated delta rule against its definition, step by step."""

from __future__ import annotations

import torch

from models.delta_rule import chunk_delta_rule, delta_step


def stepwise(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """S ← exp(g) S, then S ← S + k ⊗ β (v - S k); o = S q / sqrt(D). All [B, T, H, ...]. Also the last S."""
    batch, length, heads, width = v.shape
    state = v.new_zeros(batch, heads, width, width)  # keys down, values across
    rows = []
    for t in range(length):
        state = state * g[:, t, :, None, None].exp()
        delta = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * delta[:, :, None, :]
        rows.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * width**-0.5)
    return torch.stack(rows, 1), state


def inputs(length: int, decay: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = torch.randn(3, 2, length, 3, 16, generator=generator).unbind(0)
    rates = torch.rand(2, 2, length, 3, generator=generator)
    unit = torch.nn.functional.normalize
    return [unit(q, dim=-1), unit(k, dim=-1), v, -decay * rates[0], rates[1]]


def test_the_chunk_form_equals_the_steps_over_several_chunks() -> None:
    for decay in (0.02, 1.0, 40.0):  # 40: quotients of decays would overflow
        arguments = inputs(192, decay)
        expected, expected_state = stepwise(*arguments)
        got, state = chunk_delta_rule(*arguments)
        assert (got - expected).abs().max() < 2e-5
        assert (state - expected_state).abs().max() < 2e-5
        assert expected.abs().max() > 0.05
        assert expected_state.abs().max() > 0.05


def test_steps_go_on_from_the_chunk_forms_state() -> None:
    arguments = inputs(128, 0.3)
    expected, expected_state = stepwise(*arguments)
    _, state = chunk_delta_rule(*(x[:, :64] for x in arguments))
    rows = [delta_step(state, *(x[:, t] for x in arguments)) for t in range(64, 128)]
    assert (torch.stack(rows, 1) - expected[:, 64:]).abs().max() < 2e-5
    assert (state - expected_state).abs().max() < 2e-5


def test_gradients_of_the_chunk_form_equal_those_of_the_steps() -> None:
    found = []
    for rule in (stepwise, chunk_delta_rule):
        arguments = [x.requires_grad_() for x in inputs(128, 0.3)]
        weights = torch.randn(2, 128, 3, 16, generator=torch.Generator().manual_seed(9))
        found.append(torch.autograd.grad((rule(*arguments)[0] * weights).sum(), arguments))
    for expected, got in zip(*found, strict=True):
        assert (expected - got).norm() < 1e-4 * expected.norm()


def test_a_row_depends_on_nothing_after_it() -> None:
    arguments = inputs(128, 0.3)
    before, _ = chunk_delta_rule(*arguments)
    changed = [torch.cat((x[:, :70], torch.flip(x[:, 70:], (1,))), 1) for x in arguments]
    after, _ = chunk_delta_rule(*changed)
    assert (after[:, :70] - before[:, :70]).abs().max() < 1e-6
    assert (after[:, 70:] - before[:, 70:]).abs().max() > 1e-2
