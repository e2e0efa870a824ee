"""Gated full attention with partial rotary embedding over a cache of keys and values."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from server.model.activations import sigmoid
from server.model.config import ModelConfig
from server.model.linear import MAX_ROWS, can_pack, onednn_linear
from server.model.state import KEY_BLOCK, KeyValueCache
from server.model.weights import AttentionWeights


class Rotary:
    """Rotary embedding of the first `rope_dims` of a head, pairs (j, j + rope_dims / 2).

    The frequencies are shared between three kinds of position; in text all three are the token's position.
    """

    def __init__(self, config: ModelConfig, device: torch.device, wide: torch.dtype) -> None:
        self.half = config.rope_dims // 2
        exponents = torch.arange(self.half, dtype=torch.float64) / self.half
        self.frequencies = config.rope_base**-exponents
        self.device, self.wide = device, wide
        self.cos = torch.empty(0, 1, 1, self.half, device=device, dtype=wide)
        self.sin = self.cos

    def rotate_(self, x: torch.Tensor, start: int) -> None:
        """x [T, heads, head dim], the first row at position `start`; in place."""
        rows, half = x.shape[0], self.half
        if start + rows > self.cos.shape[0]:
            self._grow(start + rows)
        pair = torch.unflatten(x[:, :, : 2 * half], 2, (2, half))
        a, b = (pair * self.cos[start : start + rows]).unbind(2)
        sin_a, sin_b = (pair * self.sin[start : start + rows]).unbind(2)
        torch.sub(a, sin_b, out=x[:, :, :half])
        torch.add(b, sin_a, out=x[:, :, half : 2 * half])

    def _grow(self, needed: int) -> None:
        positions = torch.arange(-(-needed // 1024) * 1024, dtype=torch.float64)
        angles = torch.outer(positions, self.frequencies)[:, None, None, :]
        self.cos = angles.cos().to(self.device, self.wide)
        self.sin = angles.sin().to(self.device, self.wide)


class Attention:
    """The mixer's arithmetic for one model; weights and caches are passed in."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype, wide: torch.dtype) -> None:
        self.config = config
        self.wide = wide
        self.rotary = Rotary(config, device, wide)
        self.onednn = can_pack(device, dtype)
        self.fused = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)
        """Torch has a kernel for scores, weights and sums together."""
        self.later = torch.full((KEY_BLOCK, KEY_BLOCK), -torch.inf, device=device, dtype=dtype).triu_(1)
        """[KEY_BLOCK, KEY_BLOCK]: added to the scores of the block a query stands in."""

    def rows(
        self, x: torch.Tensor, start: int, w: AttentionWeights, cache: KeyValueCache, prompt: bool = False
    ) -> torch.Tensor:
        """x [T, E] normed, at positions start ..; their keys and values are stored -> mixer output [T, E].

        prompt: these rows needn't be the same in every company.
        """
        c, rows = self.config, x.shape[0]
        mixed = w.inputs(x)
        heads = c.heads + c.kv_heads
        normed, values, gates = torch.split(
            mixed, [heads * c.head_dim, c.kv_heads * c.head_dim, c.heads * c.head_dim], dim=1
        )
        query_key = self._norm_and_rotate(normed.view(rows, heads, c.head_dim), w.head_norms, start).to(x.dtype)
        cache.write(start, query_key[:, c.heads :], values.view(rows, c.kv_heads, c.head_dim))
        attend = self._attend_at_once if prompt and self.fused else self._attend
        out = attend(query_key[:, : c.heads], start, cache)
        return w.output(out * sigmoid(gates))

    def store(
        self, keys: torch.Tensor, values: torch.Tensor, start: int, w: AttentionWeights, cache: KeyValueCache
    ) -> None:
        """Store rows whose keys and values (before norm and rotation) [T, kv heads · head dim] are known."""
        c, rows = self.config, keys.shape[0]
        normed = self._norm_and_rotate(keys.view(rows, c.kv_heads, c.head_dim), w.head_norms[c.heads :], start).to(
            keys.dtype
        )
        cache.write(start, normed, values.view(rows, c.kv_heads, c.head_dim))

    def _norm_and_rotate(self, x: torch.Tensor, weight: torch.Tensor, start: int) -> torch.Tensor:
        c = self.config
        normed = torch.rms_norm(x.to(self.wide), (c.head_dim,), None, c.eps).mul_(weight)
        self.rotary.rotate_(normed, start)
        return normed

    def _attend_at_once(self, queries: torch.Tensor, start: int, cache: KeyValueCache) -> torch.Tensor:
        """What `_attend` does, in one kernel that keeps no scores."""
        rows = queries.shape[0]
        keys, values = cache.keys[None, :, : start + rows], cache.values[None, :, : start + rows]
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=causal_lower_right(rows, start + rows),
            scale=1.0,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(rows, -1)

    def _attend(self, queries: torch.Tensor, start: int, cache: KeyValueCache) -> torch.Tensor:
        """Causal attention of queries [T, heads, head dim], already scaled -> [T, heads · head dim].

        Rows that stand in the same block of keys go together, over all keys up to that block's end, the later
        ones masked: so a row's sums have the same length and order in every company.
        """
        rows = queries.shape[0]
        parts = []
        row = 0
        while row < rows:
            position = start + row
            end = (position // KEY_BLOCK + 1) * KEY_BLOCK
            together = min(rows - row, end - position)
            if not self.onednn and rows <= MAX_ROWS:
                together = 1  # a plain product of few rows isn't row-invariant
            parts.append(self._attend_block(queries[row : row + together], position, end, cache))
            row += together
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_block(self, queries: torch.Tensor, position: int, end: int, cache: KeyValueCache) -> torch.Tensor:
        c, rows = self.config, queries.shape[0]
        group = c.heads // c.kv_heads
        mask = self.later[position % KEY_BLOCK :][:rows, None, :]
        outputs = []
        for head, q in enumerate(torch.unflatten(queries, 1, (c.kv_heads, group)).unbind(1)):
            keys, values = cache.keys[head, :end], cache.values[head, :end]
            scores = self._product(q.reshape(rows * group, c.head_dim), keys)
            scores.view(rows, group, end)[:, :, end - KEY_BLOCK :].add_(mask)
            weights = torch.softmax(scores, dim=-1, dtype=self.wide).to(scores.dtype)
            outputs.append(self._product(weights, values.t()).view(rows, group * c.head_dim))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _product(self, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """x [M, in] · matrixᵀ, matrix [out, in]: row-invariant with oneDNN, where one row alone is an exception."""
        if not self.onednn:
            return x @ matrix.t()
        if x.shape[0] == 1:
            return onednn_linear(x.expand(2, -1), matrix)[:1]
        return onednn_linear(x, matrix)
