"""The interpreter's mixers: a Gated DeltaNet layer between its projections, and attention in parts."""

from __future__ import annotations

import torch
from torch import Tensor

from server.kernel.arithmetic import Arithmetic, multiply_add, square_sums
from server.kernel.instructions import Attention, AttentionReduce, DeltaRule, chunk_positions
from server.kernel.model import KernelModel
from server.kernel.sequence import Buffers, count, folded_memory, ring_slots
from server.kernel.weights import Weights
from server.model.activations import VECTOR, sigmoid, silu, softplus

L2_EPS = 1e-6


class DeltaMixer:
    """Memories are [value heads, value, key]: the sums over keys run along memory."""

    def __init__(self, model: KernelModel, weights: Weights, arithmetic: Arithmetic) -> None:
        self.model = model
        self.weights = weights
        self.arithmetic = arithmetic

    def run(self, i: DeltaRule, at: Buffers, rows: int) -> None:
        c, block, vector = self.model.config, f"blk.{i.layer}", self.weights.vector
        length = count(at, "length")
        memory = folded_memory(at, i.layer, self.kept(length, count(at, "fold")))
        self.keep(block, at, memory)
        window = at[f"{block}.conv"][self.window(length, rows)]
        taps = vector(f"{block}.ssm_conv1d.weight")
        convolved = sum(window[tap : tap + rows] * taps[:, tap] for tap in range(c.conv_kernel))
        assert isinstance(convolved, Tensor)
        convolved = silu(convolved)
        query, key = (
            _l2(part.view(rows, c.key_heads, c.state_size)).repeat(1, c.value_heads // c.key_heads, 1)
            for part in torch.split(convolved[:, : 2 * c.key_width], c.key_width, dim=1)
        )
        query = query * c.state_size**-0.5
        value = convolved[:, 2 * c.key_width :].view(rows, c.value_heads, c.state_size)
        b, a = torch.split(at["gates"][:rows], c.value_heads, dim=1)
        beta = sigmoid(b)
        time = _softplus(a + vector(self.model.time_bias(i.layer)))
        decay = torch.exp(vector(f"{block}.ssm_a") * time)
        slots = ring_slots(range(length, length + rows))
        out = torch.empty_like(value)
        for row in range(rows):
            memory = memory * decay[row, :, None, None]
            predicted = (memory * key[row, :, None, :]).sum(-1)
            delta = beta[row, :, None] * (value[row] - predicted)
            memory = multiply_add(delta[:, :, None], key[row, :, None, :], memory)
            out[row] = (memory * query[row, :, None, :]).sum(-1)
            at[f"{block}.deltas"][slots[row]] = delta
        at[f"{block}.keys"][slots] = key[:, : c.key_heads]
        at[f"{block}.decays"][slots] = decay
        z = at["z"][:rows]
        weight = vector(f"{block}.ssm_norm.weight").repeat(c.value_heads)
        mixed = out.flatten(1) * weight * silu(z)
        at["mixed.in"][:rows, : c.value_width] = self.arithmetic.rounded(mixed, c.value_heads)
        at["mixed.squares"][:rows] = square_sums(out.flatten(1), c.value_heads)

    def keep(self, block: str, at: Buffers, memory: Tensor) -> None:
        """The only time that a cycle writes a memory."""
        at[f"{block}.memory"][:] = memory

    def kept(self, length: int, fold: int) -> range:
        """Positions of the rows that the memory doesn't hold yet."""
        return range(length - fold, length)

    def window(self, length: int, rows: int) -> Tensor:
        """Slots of the rows that the convolution of this cycle's rows sees."""
        return ring_slots(range(length - self.model.config.conv_kernel + 1, length + rows))


class AttentionMixer:
    """Caches are [kv heads, positions, head dim]. A row of `qkv` has query and gate of each head, keys, values."""

    def __init__(self, model: KernelModel, weights: Weights, arithmetic: Arithmetic) -> None:
        self.model = model
        self.weights = weights
        self.arithmetic = arithmetic
        half = model.config.rope_dims // 2
        self.frequencies = model.config.rope_base ** -(torch.arange(half, dtype=torch.float64) / half)

    def run(self, i: Attention, at: Buffers, rows: int) -> None:
        c, block = self.model.config, f"blk.{i.layer}"
        width = c.kv_heads * c.head_dim
        positions = _positions(i, at, rows)
        queries, keys, values = torch.split(at["qkv"][:rows], [2 * c.heads * c.head_dim, width, width], dim=1)
        cached = self._rotated(keys.view(rows, c.kv_heads, c.head_dim), f"{block}.attn_k_norm.weight", positions)
        for row, position in enumerate(positions):
            at[f"{block}.k"][:, position] = cached[row].to(at[f"{block}.k"].dtype)
            at[f"{block}.v"][:, position] = values[row].view(c.kv_heads, c.head_dim).to(at[f"{block}.v"].dtype)
        if not i.queries:
            return
        query = queries.view(rows, c.heads, 2, c.head_dim)[:, :, 0]
        query = self._rotated(query, f"{block}.attn_q_norm.weight", positions) * c.head_dim**-0.5
        for row in range(i.queries):
            self._attend(i, at, row, positions[row], query[row])

    def _attend(self, i: Attention, at: Buffers, row: int, position: int, query: Tensor) -> None:
        c, block = self.model.config, f"blk.{i.layer}"
        grouped = query.view(c.kv_heads, -1, c.head_dim)
        chunk = chunk_positions(position, i.parts)
        for part, start in enumerate(range(0, position + 1, chunk)):
            stop = min(start + chunk, position + 1)
            keys, values = (at[f"{block}.{kv}"][:, start:stop].to(self.arithmetic.dtype) for kv in "kv")
            scores = torch.einsum("hgd,hpd->hgp", grouped, keys)
            most = scores.amax(-1, keepdim=True)
            weights = torch.exp(scores - most)
            at["parts"][row, :, part] = torch.einsum("hgp,hpd->hgd", weights, values).flatten(0, 1)
            at["parts.stats"][row, :, part, 0] = most.flatten()
            at["parts.stats"][row, :, part, 1] = weights.sum(-1).flatten()

    def reduce(self, i: AttentionReduce, at: Buffers, rows: int) -> None:
        c = self.model.config
        for row, position in enumerate(_positions(i, at, rows)):
            parts = -(-(position + 1) // chunk_positions(position, i.parts))
            most, sums = at["parts.stats"][row, :, :parts].unbind(-1)
            factors = torch.exp(most - most.amax(1, keepdim=True))
            total = (factors[:, :, None] * at["parts"][row, :, :parts]).sum(1) / (factors * sums).sum(1, keepdim=True)
            gate = at["qkv"][row, : 2 * c.heads * c.head_dim].view(c.heads, 2, c.head_dim)[:, 1]
            mixed = (total * sigmoid(gate)).flatten()[None]
            at["mixed.in"][row, : mixed.shape[1]] = self.arithmetic.rounded(mixed)[0]

    def _rotated(self, x: Tensor, norm: str, positions: list[int]) -> Tensor:
        """x [T, heads, head dim] normed and rotated: pairs (j, j + half) of the first rope_dims."""
        c = self.model.config
        half = c.rope_dims // 2
        normed = x * (x.square().mean(-1, keepdim=True) + c.eps).rsqrt() * self.weights.vector(norm)
        angles = torch.outer(torch.tensor(positions, dtype=torch.float64), self.frequencies)[:, None, :]
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        a, b, rest = normed[..., :half], normed[..., half : 2 * half], normed[..., 2 * half :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def _positions(i: Attention | AttentionReduce, at: Buffers, rows: int) -> list[int]:
    """Positions of the rows: the verified ones follow the length, those behind go back from it."""
    length = count(at, "length")
    direction = -1 if i.rows.kind == "behind" else 1
    return [length + i.step + direction * row for row in range(rows)]


def _softplus(x: Tensor) -> Tensor:
    """On whole vectors, so that a row's bits don't depend on where it stands."""
    width = x.shape[1]
    return softplus(torch.nn.functional.pad(x, (0, -width % VECTOR)))[:, :width]


def _l2(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
