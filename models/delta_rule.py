"""The gated delta rule: over whole sequences (the library's kernel on a GPU, else plain torch), and token by token."""

from __future__ import annotations

from typing import Any, cast

import torch

from models.errors import TrainingError

CHUNK = 64


def chunk_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chunked form in torch (Yang et al., "Gated Delta Networks", section 3.3), float32 inside.

    q, k [B, T, H, D] with unit-length heads, q not yet scaled; v [B, T, H, D]; g (log decay) and beta [B, T, H];
    T a multiple of 64. Returns o [B, T, H, D] in v's dtype, and the state after the last token [B, H, D, D] (keys down,
    values across, float32), which was zero before the first.
    """
    batch, length, heads, width = v.shape
    chunks = length // CHUNK

    def chunked(x: torch.Tensor) -> torch.Tensor:
        return x.float().reshape(batch, chunks, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)

    qc, kc, vc = chunked(q) * width**-0.5, chunked(k), chunked(v)
    gc, bc = chunked(g[..., None]), chunked(beta[..., None])
    total = gc.cumsum(-2)  # [B, H, N, C, 1]
    # Subtract before exponentiating, and mask before too: a quotient of exponentials overflows.
    difference = total - total.transpose(-1, -2)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).tril()
    decay = difference.masked_fill(~lower, float("-inf")).exp()
    a = (bc * (kc @ kc.transpose(-1, -2)) * decay).tril(-1)
    eye = torch.eye(CHUNK, device=v.device)
    inverse = torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False)
    values = inverse @ (bc * vc)
    keys = inverse @ (bc * total.exp() * kc)
    scores = (qc @ kc.transpose(-1, -2)) * decay
    state = v.new_zeros(batch, heads, width, width, dtype=torch.float32)
    outputs = []
    for i in range(chunks):
        u = values[:, :, i] - keys[:, :, i] @ state
        outputs.append((qc[:, :, i] * total[:, :, i].exp()) @ state + scores[:, :, i] @ u)
        last = total[:, :, i, -1:]
        state = last.exp() * state + (kc[:, :, i] * (last - total[:, :, i]).exp()).transpose(-1, -2) @ u
    out = torch.stack(outputs, 2).permute(0, 2, 3, 1, 4).reshape(batch, length, heads, width)
    return out.to(v.dtype), state


def delta_step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """One token more: S ← exp(g) S + k ⊗ u with u = β (v - exp(g) Sᵀ k); o = Sᵀ q / sqrt(D). No gradients.

    ``state`` [B, H, D, D] in float32 is changed in place; q, k, v, o [B, H, D], g and beta [B, H]. The state is read
    once for k and q together: Sᵀ q of the new state is exp(g) Sᵀ q of the old one plus (k · q) u.
    """
    q, k, wide = q.float(), k.float(), v.float()
    decay, beta = g.exp()[..., None], beta[..., None]
    old_k, old_q = (torch.stack((k, q), 2) @ state).unbind(2)
    u = beta * (wide - decay * old_k)
    o: torch.Tensor = (decay * old_q + (k * q).sum(-1, keepdim=True) * u) * v.shape[-1] ** -0.5
    state.mul_(decay[..., None]).addcmul_(k[..., None], u[..., None, :])
    return o.to(v.dtype)


def library_delta_rule() -> Any:
    """``flash-linear-attention``'s kernel with the same arguments and result as ``chunk_delta_rule``.

    Its backward refuses Hopper with triton 3.4 to 3.7.0 by a version check; ``check_against_torch`` shows on the card
    at hand that forward and backward are right, so the check is switched off. At most four tuning candidates per kernel
    are tried: trying all takes minutes at every start.
    """
    from triton.runtime.autotuner import Autotuner

    whole = Autotuner.__init__

    def fewer(self: Any, fn: Any, arg_names: Any, configs: Any, *args: Any, **kwargs: Any) -> None:
        step = max(1, -(-len(configs) // 4))
        whole(self, fn, arg_names, configs[::step], *args, **kwargs)

    Autotuner.__init__ = fewer
    import fla.ops.common.chunk_o as chunk_o
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    chunk_o.TRITON_ABOVE_3_4_0 = False

    def delta_rule(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The final state costs little: the kernel writes a state of this size for each 64 tokens anyway.
        result = chunk_gated_delta_rule(q, k, v, g, beta, scale=q.shape[-1] ** -0.5, output_final_state=True)
        return cast(tuple[torch.Tensor, torch.Tensor], result)

    return delta_rule


def check_against_torch(delta_rule: Any, heads: int, width: int, tolerance: float = 1e-2) -> float:
    """Largest relative error (norm of the difference over norm) against ``chunk_delta_rule``: output, gradients, state.

    Raises TrainingError above the tolerance: training on wrong gradients would look almost normal.
    """
    generator = torch.Generator(device="cuda").manual_seed(0)

    def inputs() -> list[torch.Tensor]:
        def draw() -> torch.Tensor:
            return torch.randn(2, 512, heads, width, device="cuda", generator=generator)

        q, k = (torch.nn.functional.normalize(draw(), dim=-1).bfloat16() for _ in range(2))
        rates = torch.rand(2, 2, 512, heads, device="cuda", generator=generator)
        return [q, k, draw().bfloat16(), -rates[0], rates[1]]

    mine = [x.requires_grad_() for x in inputs()]
    theirs = [x.detach().clone().requires_grad_() for x in mine]
    gradient = torch.randn(2, 512, heads, width, device="cuda", generator=generator).bfloat16()
    (expected, expected_state), (got, state) = chunk_delta_rule(*mine), delta_rule(*theirs)
    expected_gradients = torch.autograd.grad(expected, mine, gradient)
    gradients = torch.autograd.grad(got, theirs, gradient)
    worst = 0.0
    for a, b in zip((expected, expected_state, *expected_gradients), (got, state, *gradients), strict=True):
        worst = max(worst, float(((a.float() - b.float()).norm() / a.float().norm()).detach()))
    if not worst < tolerance:
        raise TrainingError(
            f"the delta-rule kernel differs from its definition by {worst:.2e} (limit {tolerance}): "
            "take versions of flash-linear-attention and triton that agree on this card"
        )
    return worst
