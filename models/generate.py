"""Greedy continuations of many prompts at once, by the network as it is being trained.

The same functions as in training, uncompiled: compiled ones would be compiled again for the shapes here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from models.delta_rule import delta_step
from models.network import (
    ATTENTION_INPUTS,
    ATTENTION_OUTPUT,
    GDN_OUTPUT,
    GDN_PROJECTIONS,
    Network,
    Weights,
    attend,
    attention_inputs,
    attention_output,
    gdn_heads,
    gdn_output,
    gdn_projections,
    named,
    rms,
)


@dataclass
class GdnCache:
    """What a Gated DeltaNet layer keeps: rows before the convolution [B, taps - 1, 3·H·D], the state [B, H, D, D].

    Both are zero before the first token.
    """

    rows: torch.Tensor
    state: torch.Tensor


@dataclass
class AttentionCache:
    """Rotated keys, and values, [B, kv_heads, positions, D], with room for all positions."""

    keys: torch.Tensor
    values: torch.Tensor


class Generation:
    """One batch of sequences: whole prompts first, then one token a step."""

    def __init__(self, network: Network, w: Weights, batch: int, positions: int) -> None:
        self.network, self.w, self.dims = network, w, network.dims
        self.at = 0
        dims, embedding = self.dims, w["token_embd.weight"]
        # Logits in float32: rounded ones have ties, and the engine that runs the file has none.
        self.embedding = embedding.float()
        heads, width = dims.linear_heads, dims.linear_dim
        self.caches: list[GdnCache | AttentionCache] = []
        for layer in range(dims.layers):
            if dims.is_attention(layer):
                keys, values = embedding.new_empty(2, batch, dims.kv_heads, positions, dims.head_dim).unbind()
                self.caches.append(AttentionCache(keys, values))
            else:
                rows = embedding.new_zeros(batch, dims.conv_kernel - 1, 3 * heads * width)
                state = embedding.new_zeros(batch, heads, width, width, dtype=torch.float32)
                self.caches.append(GdnCache(rows, state))

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [B, T], the prompts (T a multiple of 64) or one token each -> the likeliest next token of each [B]."""
        x = F.embedding(ids, self.w["token_embd.weight"])
        for layer, cache in enumerate(self.caches):
            x = self.gdn(layer, x, cache) if isinstance(cache, GdnCache) else self.attention(layer, x, cache)
        self.at += ids.shape[1]
        hidden = rms(x[:, -1], self.w["output_norm.weight"], self.dims.eps)
        return F.linear(hidden.float(), self.embedding).argmax(-1)

    def gdn(self, layer: int, x: torch.Tensor, cache: GdnCache) -> torch.Tensor:
        dims, conv = self.dims, self.w[f"blk.{layer}.ssm_conv1d.weight"]
        u, g, beta, z = gdn_projections(x, *named(self.w, layer, GDN_PROJECTIONS), eps=dims.eps)
        u = torch.cat((cache.rows, u), 1)
        cache.rows = u[:, 1 - dims.conv_kernel :].clone()  # a view would keep all of u
        q, k, v = gdn_heads(u, conv, dims.linear_dim)
        if self.at == 0:
            o, cache.state = self.network.delta_rule(q, k, v, g, beta)
        else:
            o = delta_step(cache.state, q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0])[:, None]
        return gdn_output(x, o, z, *named(self.w, layer, GDN_OUTPUT), eps=dims.eps)

    def attention(self, layer: int, x: torch.Tensor, cache: AttentionCache) -> torch.Tensor:
        here = slice(self.at, self.at + x.shape[1])
        cos, sin = self.network.cos[here], self.network.sin[here]
        inputs = named(self.w, layer, ATTENTION_INPUTS)
        q, k, v, output_gate = attention_inputs(x, cos, sin, *inputs, eps=self.dims.eps)
        cache.keys[:, :, here], cache.values[:, :, here] = k, v
        if self.at == 0:
            o = attend(q, k, v)
        else:
            # The heads that share keys stand where rows do: nothing is copied for each of them.
            rows = q.reshape(len(q), self.dims.kv_heads, -1, self.dims.head_dim)
            seen = slice(0, here.stop)
            o = F.scaled_dot_product_attention(rows, cache.keys[:, :, seen], cache.values[:, :, seen]).reshape(q.shape)
        return attention_output(x, o, output_gate, *named(self.w, layer, ATTENTION_OUTPUT), eps=self.dims.eps)


@torch.no_grad()
def greedy(network: Network, w: Weights, prompts: torch.Tensor, count: int) -> torch.Tensor:
    """prompts [B, P] (P a multiple of 64; P + count no longer than the network's length) -> ids [B, count].

    End tokens don't stop it. Nothing waits for the device between two tokens.
    """
    generation = Generation(network, w, len(prompts), prompts.shape[1] + count)
    ids = [generation.step(prompts)]
    while len(ids) < count:
        ids.append(generation.step(ids[-1][:, None]))
    return torch.stack(ids, 1)
