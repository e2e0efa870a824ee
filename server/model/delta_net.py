"""The Gated DeltaNet mixer in its two forms: token by token (decode) and in chunks (prefill).

A value head t has a memory S [key dim, value dim] and uses key head t mod key heads. One token:
S ← e^g S;  δ = β (v - Sᵀk);  S ← S + k δᵀ;  o = Sᵀq.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from server.model import delta_net_gpu
from server.model.activations import rms_norm, sigmoid, silu, softplus
from server.model.config import ModelConfig
from server.model.state import DecodedLayer
from server.model.weights import DeltaNetWeights, gate_width

CHUNK = 64
"""Tokens of a chunk in prefill. Chunks begin at multiples of it, counted from the start of the sequence, and
wherever a prefill begins."""
_L2_EPS = 1e-6


@dataclass(frozen=True)
class Prepared:
    """What the recurrence takes, T tokens: k and q already normalised, q scaled, both once for each value head."""

    query_key: torch.Tensor
    """[T, 2, value heads, D]: q, then k."""
    values: torch.Tensor
    """[T, value heads, D]."""
    beta: torch.Tensor
    """[T, value heads]."""
    log_decay: torch.Tensor
    """[T, value heads]: g ≤ 0."""
    gate: torch.Tensor
    """[T, value heads, D]: z."""


class DeltaNet:
    """The mixer's arithmetic for one model; weights and states are passed in."""

    def __init__(self, config: ModelConfig, device: torch.device, wide: torch.dtype) -> None:
        self.config = config
        size = config.state_size
        # l2(x) = rms(x, eps / D) / sqrt(D), and q is divided by another sqrt(D)
        self.query_key_scale = torch.tensor([1.0 / size, size**-0.5], device=device, dtype=wide).view(2, 1, 1)
        ones = torch.ones(CHUNK, CHUNK, device=device)
        self.above = ones.triu(1).bool()
        """[CHUNK, CHUNK]: True where the column comes after the row."""

    def decode(
        self,
        x: torch.Tensor,
        w: DeltaNetWeights,
        conv: torch.Tensor,
        memory_before: torch.Tensor,
        memory: torch.Tensor,
    ) -> tuple[torch.Tensor, DecodedLayer]:
        """x [T, E] normed -> mixer output [T, E] and what a rollback needs.

        conv [kernel - 1, C] is the window before; memory_before [value heads, D, D] is read, memory is written.
        """
        rows = x.shape[0]
        c = self.config
        mixed = w.inputs(x).to(memory.dtype)
        inputs = torch.cat((conv, mixed[:, : c.conv_channels]))
        width = c.conv_channels
        windows = inputs.as_strided((rows, c.conv_kernel, width), (width, width, 1))
        p = self._prepare(silu((windows * w.conv).sum(1)), mixed, w)
        decays = p.log_decay.exp()
        keys = p.query_key[:, 1]
        dots = (p.query_key[:, 0] * keys).sum(-1, keepdim=True)
        out = torch.empty_like(p.values)
        deltas = torch.empty_like(p.values)
        source = memory_before
        for query_key, key, value, beta, decay, dot, delta, o in zip(
            p.query_key.transpose(1, 2).unbind(0),
            keys[:, :, :, None].unbind(0),
            p.values.unbind(0),
            p.beta[:, :, None].unbind(0),
            decays[:, :, None, None].unbind(0),
            dots.unbind(0),
            deltas.unbind(0),
            out.unbind(0),
            strict=True,
        ):
            # both reads from the memory before the update: o = e^g Sᵀq + (q·k) δ
            read, predicted = torch.bmm(query_key, source).mul_(decay).unbind(1)
            torch.sub(value, predicted, out=delta).mul_(beta)
            torch.addcmul(read, dot, delta, out=o)
            torch.mul(source, decay, out=memory)
            memory.addcmul_(key, delta[:, None, :])
            source = memory
        record = DecodedLayer(inputs, keys, deltas, decays)
        return self._finish(out, p.gate, w, x.dtype), record

    def prefill(
        self, x: torch.Tensor, start: int, w: DeltaNetWeights, conv: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, E] normed, its first token at position `start` -> mixer output [T, E] and the new conv window.

        memory [value heads, D, D] is advanced in place.
        """
        rows, c = x.shape[0], self.config
        mixed = w.inputs(x)
        if mixed.is_cuda and mixed.dtype == torch.bfloat16 and c.state_size in delta_net_gpu.SIZES:
            out = w.output(delta_net_gpu.prefill(c, mixed, w, conv, memory))
            return out, torch.cat((conv, mixed[1 - c.conv_kernel :, : c.conv_channels].to(conv.dtype)))[
                -conv.shape[0] :
            ]
        mixed = mixed.to(memory.dtype)
        inputs = torch.cat((conv, mixed[:, : c.conv_channels]))
        convolved = inputs[:rows] * w.conv[0]
        for tap in range(1, c.conv_kernel):
            convolved += inputs[tap : tap + rows] * w.conv[tap]
        p = self._prepare(silu(convolved), mixed, w)
        out = self._chunks(p, start % CHUNK, memory)
        return self._finish(out, p.gate, w, x.dtype), inputs[rows:].clone()

    def _prepare(self, convolved: torch.Tensor, mixed: torch.Tensor, w: DeltaNetWeights) -> Prepared:
        c, rows = self.config, convolved.shape[0]
        size, gates = c.state_size, gate_width(c)
        query_key = convolved[:, : 2 * c.key_width].view(rows, 2, c.key_heads, size)
        query_key = torch.rms_norm(query_key, (size,), None, _L2_EPS / size).mul_(self.query_key_scale)
        repeat = c.value_heads // c.key_heads
        if repeat > 1:
            query_key = query_key.repeat(1, 1, repeat, 1)
        values = convolved[:, 2 * c.key_width :].view(rows, c.value_heads, size)
        z, b, a = torch.split(mixed[:, c.conv_channels :], [c.value_width, gates, gates], dim=1)
        beta = sigmoid(b)[:, : c.value_heads]
        log_decay = softplus(a + w.time_bias).mul_(w.decay)[:, : c.value_heads]
        return Prepared(query_key, values, beta, log_decay, z)

    def _finish(self, out: torch.Tensor, z: torch.Tensor, w: DeltaNetWeights, dtype: torch.dtype) -> torch.Tensor:
        """out [T, value heads, D], z [T, value width] -> [T, E]: norm before gate."""
        normed = rms_norm(out, w.norm, self.config.eps).view(out.shape[0], -1)
        return w.output(normed.mul_(silu(z)).to(dtype))

    def _chunks(self, p: Prepared, offset: int, memory: torch.Tensor) -> torch.Tensor:
        """The recurrence over whole chunks; the first token stands at `offset` in its chunk. -> [T, value heads, D]

        With G the running sum of g and Γ_ts = e^(G_t - G_s) for s ≤ t, else 0:
        A = strictly lower (diag(β) K Kᵀ ⊙ Γ);  (I + A) U = diag(β) (V - diag(e^G) K S);
        O = diag(e^G) Q S + (Q Kᵀ ⊙ Γ) U;  S ← e^(G_C) S + Σ_t e^(G_C - G_t) k_t U_tᵀ.
        The system is solved for V and for diag(e^G) K apart, so that only products with S go chunk by chunk.
        Rows before and after the tokens are zeros, which changes nothing (β = 0, g = 0).
        """
        rows, heads, size = p.values.shape
        chunks = -(-(offset + rows) // CHUNK)
        after = chunks * CHUNK - offset - rows

        def frame(x: torch.Tensor) -> torch.Tensor:
            """[T, value heads, n] -> [chunks · value heads, CHUNK, n]."""
            framed = F.pad(x, (0, 0, 0, 0, offset, after)) if offset or after else x
            return framed.view(chunks, CHUNK, heads, -1).transpose(1, 2).reshape(chunks * heads, CHUNK, -1)

        query, key, value = frame(p.query_key[:, 0]), frame(p.query_key[:, 1]), frame(p.values)
        beta = frame(p.beta[:, :, None])
        total = frame(p.log_decay[:, :, None]).cumsum(1)
        decay = total.exp()
        # subtract first, mask, then exp: a quotient of exponentials would overflow
        gamma = (total - total.transpose(1, 2)).masked_fill_(self.above, -torch.inf).exp_()
        system = torch.bmm(key * beta, key.transpose(1, 2)).mul_(gamma)
        right = torch.cat((value, key * decay), dim=-1).mul_(beta)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        from_value, from_key = solved.view(chunks, heads, CHUNK, 2 * size).chunk(2, dim=-1)
        weights = torch.bmm(query, key.transpose(1, 2)).mul_(gamma).view(chunks, heads, CHUNK, CHUNK)
        read = (query * decay).view(chunks, heads, CHUNK, size)
        end = total[:, -1:]
        write = (key * (end - total).exp()).transpose(1, 2).reshape(chunks, heads, size, CHUNK)
        end_decay = end.exp().view(chunks, heads, 1, 1)
        out = torch.empty(chunks, heads, CHUNK, size, device=memory.device, dtype=memory.dtype)
        for i in range(chunks):
            update = torch.baddbmm(from_value[i], from_key[i], memory, alpha=-1)
            torch.bmm(read[i], memory, out=out[i])
            out[i].baddbmm_(weights[i], update)
            memory.mul_(end_decay[i]).baddbmm_(write[i], update)
        return out.transpose(1, 2).reshape(chunks * CHUNK, heads, size)[offset : offset + rows]
