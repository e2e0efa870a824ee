"""The network in the form it is trained in: plain functions over weights named as in the file.

The same mathematics as ``server/model`` (which runs one sequence with caches); here whole windows in bfloat16, with
gradients. Shapes: B windows, T tokens, E hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Weights = dict[str, torch.Tensor]
DeltaRule = Callable[..., tuple[torch.Tensor, torch.Tensor]]

# The weights that the functions below take, in their order; names within a block.
FEED_FORWARD = ("post_attention_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
GDN_PROJECTIONS = (
    "attn_norm.weight",
    "attn_qkv.weight",
    "attn_gate.weight",
    "ssm_beta.weight",
    "ssm_alpha.weight",
    "ssm_a",
    "ssm_dt.bias",
)
GDN_OUTPUT = ("ssm_norm.weight", "ssm_out.weight", *FEED_FORWARD)
ATTENTION_INPUTS = (
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
)
ATTENTION_OUTPUT = ("attn_output.weight", *FEED_FORWARD)


@dataclass(frozen=True)
class Dimensions:
    """The embedded model's shape; every row length divides by 256, so that K-quants fit."""

    vocab: int = 16384
    hidden: int = 512
    layers: int = 12
    ffn: int = 1536
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 256
    rotary: int = 64
    rope_base: float = 1e7
    linear_heads: int = 4
    linear_dim: int = 128
    conv_kernel: int = 4
    attention_every: int = 4
    eps: float = 1e-6

    def is_attention(self, layer: int) -> bool:
        return layer >= self.layers or (layer + 1) % self.attention_every == 0


REHEARSAL = Dimensions(
    hidden=256, layers=4, ffn=256, heads=4, kv_heads=1, head_dim=64, rotary=16, linear_heads=2, linear_dim=128
)
"""Small enough to rehearse a training run on a CPU; exports with the same types."""


def initial_weights(dims: Dimensions, seed: int) -> Weights:
    """Random float32 weights. Layer ``dims.layers`` is the multi-token-prediction block."""
    generator = torch.Generator().manual_seed(seed)
    inner = dims.linear_heads * dims.linear_dim
    weights: Weights = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        weights[name] = torch.randn(rows, columns, generator=generator) * 0.02 * scale

    def ones(name: str, size: int) -> None:
        weights[name] = torch.ones(size)

    residual = (2 * dims.layers) ** -0.5
    matrix("token_embd.weight", dims.vocab, dims.hidden)
    ones("output_norm.weight", dims.hidden)
    for i in range(dims.layers + 1):
        p = f"blk.{i}."
        ones(p + "attn_norm.weight", dims.hidden)
        ones(p + "post_attention_norm.weight", dims.hidden)
        matrix(p + "ffn_gate.weight", dims.ffn, dims.hidden)
        matrix(p + "ffn_up.weight", dims.ffn, dims.hidden)
        matrix(p + "ffn_down.weight", dims.hidden, dims.ffn, residual)
        if dims.is_attention(i):
            matrix(p + "attn_q.weight", dims.heads * dims.head_dim * 2, dims.hidden)
            matrix(p + "attn_k.weight", dims.kv_heads * dims.head_dim, dims.hidden)
            matrix(p + "attn_v.weight", dims.kv_heads * dims.head_dim, dims.hidden)
            matrix(p + "attn_output.weight", dims.hidden, dims.heads * dims.head_dim, residual)
            ones(p + "attn_q_norm.weight", dims.head_dim)
            ones(p + "attn_k_norm.weight", dims.head_dim)
            continue
        matrix(p + "attn_qkv.weight", 3 * inner, dims.hidden)
        matrix(p + "attn_gate.weight", inner, dims.hidden)
        matrix(p + "ssm_beta.weight", dims.linear_heads, dims.hidden)
        matrix(p + "ssm_alpha.weight", dims.linear_heads, dims.hidden)
        matrix(p + "ssm_out.weight", dims.hidden, inner, residual)
        weights[p + "ssm_conv1d.weight"] = (torch.rand(3 * inner, dims.conv_kernel, generator=generator) - 0.5) * 0.7
        # Decay rates as in Mamba 2: A in (1, 16), and a softplus bias whose values are log-uniform in 0.001 to 0.1.
        # The file keeps -A; training keeps log A, see ``exported``.
        weights[p + "ssm_a"] = torch.log(torch.rand(dims.linear_heads, generator=generator) * 15 + 1)
        step = torch.exp(torch.rand(dims.linear_heads, generator=generator) * 4.6 - 6.9)
        weights[p + "ssm_dt.bias"] = step + torch.log(-torch.expm1(-step))
        ones(p + "ssm_norm.weight", dims.linear_dim)
    p = f"blk.{dims.layers}.nextn."
    matrix(p + "eh_proj.weight", dims.hidden, 2 * dims.hidden)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        ones(p + name + ".weight", dims.hidden)
    return weights


def exported(weights: Weights) -> Weights:
    """The weights as the file stores them: ``ssm_a`` becomes -exp(log A)."""
    return {name: -torch.exp(w.float()) if name.endswith("ssm_a") else w for name, w in weights.items()}


def imported(weights: Weights) -> Weights:
    """The inverse of ``exported``: weights as a file stores them, in the form they are trained in."""
    return {name: torch.log(-w) if name.endswith("ssm_a") else w for name, w in weights.items()}


def named(w: Weights, layer: int, names: Sequence[str]) -> list[torch.Tensor]:
    """The weights of one block, in the order of ``names``."""
    return [w[f"blk.{layer}.{name}"] for name in names]


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def unit(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def ffn(
    x: torch.Tensor, norm: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, eps: float
) -> torch.Tensor:
    h = rms(x, norm, eps)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def gdn_projections(
    x: torch.Tensor,
    norm: torch.Tensor,
    qkv: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    alpha: torch.Tensor,
    log_a: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """u [B, T, 3·H·D] before the convolution, log decay g and beta [B, T, H] in float32, z [B, T, H·D]."""
    h = rms(x, norm, eps)
    b = torch.sigmoid(F.linear(h, beta).float())
    g = -torch.exp(log_a) * F.softplus(F.linear(h, alpha).float() + dt_bias)
    return F.linear(h, qkv), g, b, F.linear(h, gate)


def gdn_heads(u: torch.Tensor, conv: torch.Tensor, width: int) -> tuple[torch.Tensor, ...]:
    """The convolution: u [B, taps - 1 + T, 3·H·D], led by the rows before the first token -> q, k, v [B, T, H, D]."""
    taps = conv.shape[1]
    length = u.shape[1] - taps + 1
    mixed = sum(u[:, t : t + length] * conv[:, t] for t in range(taps))
    assert isinstance(mixed, torch.Tensor)
    q, k, v = F.silu(mixed).to(u.dtype).view(len(u), length, 3, -1, width).unbind(2)
    return unit(q), unit(k), v.contiguous()


def gdn_inputs(
    x: torch.Tensor, conv: torch.Tensor, width: int, eps: float, projections: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """q, k, v, g, beta, z of whole windows."""
    u, g, b, z = gdn_projections(x, *projections, eps=eps)
    return *gdn_heads(F.pad(u, (0, 0, conv.shape[1] - 1, 0)), conv, width), g, b, z


def gdn_output(
    x: torch.Tensor,
    o: torch.Tensor,
    z: torch.Tensor,
    norm: torch.Tensor,
    out: torch.Tensor,
    post_norm: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    *,
    eps: float,
) -> torch.Tensor:
    y = rms(o, norm, eps).flatten(-2) * F.silu(z)
    return ffn(x + F.linear(y, out), post_norm, gate, up, down, eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Partial rotary embedding, halves paired (j, j + R/2); x [B, H, T, D], cos and sin [T, R/2] in float32."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat(((a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest), -1)


def attention_inputs(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: torch.Tensor,
    wq: torch.Tensor,
    wk: torch.Tensor,
    wv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    *,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """q [B, heads, T, D], k, v [B, kv_heads, T, D], the output's gate [B, T, heads, D]."""
    h = rms(x, norm, eps)
    width = q_norm.shape[0]
    query, output_gate = F.linear(h, wq).view(*x.shape[:2], -1, 2, width).unbind(3)
    q = rotate(rms(query, q_norm, eps).transpose(1, 2), cos, sin)
    k = rotate(rms(F.linear(h, wk).view(*x.shape[:2], -1, width), k_norm, eps).transpose(1, 2), cos, sin)
    v = F.linear(h, wv).view(*x.shape[:2], -1, width).transpose(1, 2)
    return q, k, v, output_gate


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention over whole windows -> o [B, heads, T, D]."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_output(
    x: torch.Tensor,
    o: torch.Tensor,
    output_gate: torch.Tensor,
    wo: torch.Tensor,
    post_norm: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    *,
    eps: float,
) -> torch.Tensor:
    o = (o.transpose(1, 2) * torch.sigmoid(output_gate)).flatten(-2)
    return ffn(x + F.linear(o, wo), post_norm, gate, up, down, eps)


def attention_block(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    output: Sequence[torch.Tensor],
    eps: float,
) -> torch.Tensor:
    """A whole block over whole windows; cos and sin may have more rows than x."""
    length = x.shape[1]
    q, k, v, output_gate = attention_inputs(x, cos[:length], sin[:length], *inputs, eps=eps)
    return attention_output(x, attend(q, k, v), output_gate, *output, eps=eps)


def mtp_input(
    embedded: torch.Tensor,
    hidden: torch.Tensor,
    enorm: torch.Tensor,
    hnorm: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Row j joins token j with the hidden state of token j - 1 (zeros before the first)."""
    previous = F.pad(hidden, (0, 0, 1, 0))[:, : hidden.shape[1]]
    return F.linear(torch.cat((rms(embedded, enorm, eps), rms(previous, hnorm, eps)), -1), proj)


def weighted_loss(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, z_loss: float
) -> torch.Tensor:
    """Mean cross-entropy in nats, each token with its weight, plus ``z_loss`` times the squared log-normaliser."""
    logits = F.linear(hidden, embedding).float()
    normaliser = torch.logsumexp(logits, -1)
    nll = normaliser - logits.gather(-1, targets[..., None])[..., 0]
    return ((nll + z_loss * normaliser.square()) * weight).sum() / weight.sum()


class Network:
    """The functions above joined: ``hidden`` for the trunk, ``draft_hidden`` for the prediction head."""

    def __init__(self, dims: Dimensions, delta_rule: DeltaRule, device: str, length: int, compile: bool) -> None:
        self.dims, self.delta_rule = dims, delta_rule
        half = dims.rotary // 2
        rates = dims.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)

        def maybe(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=False) if compile else function

        self.gdn_inputs, self.gdn_output = maybe(gdn_inputs), maybe(gdn_output)
        self.attention_block, self.mtp_input = maybe(attention_block), maybe(mtp_input)
        self.loss: Callable[..., torch.Tensor] = maybe(weighted_loss)
        self.norm: Callable[..., torch.Tensor] = maybe(rms)

    def block(self, w: Weights, layer: int, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor
        if self.dims.is_attention(layer):
            inputs, output = named(w, layer, ATTENTION_INPUTS), named(w, layer, ATTENTION_OUTPUT)
            out = self.attention_block(x, self.cos, self.sin, inputs, output, self.dims.eps)
            return out
        conv = w[f"blk.{layer}.ssm_conv1d.weight"]
        projections = named(w, layer, GDN_PROJECTIONS)
        q, k, v, g, beta, z = self.gdn_inputs(x, conv, self.dims.linear_dim, self.dims.eps, projections)
        o, _ = self.delta_rule(q, k, v, g, beta)
        out = self.gdn_output(x, o, z, *named(w, layer, GDN_OUTPUT), eps=self.dims.eps)
        return out

    def hidden(self, w: Weights, ids: torch.Tensor) -> torch.Tensor:
        """ids [B, T] -> hidden [B, T, E] after the final norm."""
        x = F.embedding(ids, w["token_embd.weight"])
        for layer in range(self.dims.layers):
            x = self.block(w, layer, x)
        return self.norm(x, w["output_norm.weight"], self.dims.eps)

    def draft_hidden(self, w: Weights, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The prediction head: row j predicts token j + 1 from token j and ``hidden`` of token j - 1."""
        p = f"blk.{self.dims.layers}.nextn."
        embedded = F.embedding(ids, w["token_embd.weight"])
        norms = w[p + "enorm.weight"], w[p + "hnorm.weight"]
        x = self.mtp_input(embedded, hidden, *norms, w[p + "eh_proj.weight"], self.dims.eps)
        x = self.block(w, self.dims.layers, x)
        return self.norm(x, w[p + "shared_head_norm.weight"], self.dims.eps)
