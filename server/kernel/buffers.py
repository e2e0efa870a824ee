"""Every buffer of a cycle with its size: what a sequence keeps between launches, and what a launch uses on the way.

Rings are addressed by position modulo RING. A cycle reads rows of the last one, written at positions before its
first own row, and writes its own behind them: as long as RING ≥ two cycles of rows they never meet, whatever was
accepted, and a rejected row is simply written again. That is all the rolling back there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from server.kernel.model import MAX_KERNEL, KernelModel
from server.kernel.tiles import GROUP_ROWS

MAX_ROWS = 16
"""Rows that one cycle verifies, at most."""
MAX_DRAFTS = 7
RING = 32
"""Slots of a ring: rows to fold (16) and new rows (16)."""
BLOCK = 32
"""Activations that share a scale."""

assert RING >= 2 * MAX_ROWS
assert RING >= MAX_ROWS + MAX_KERNEL - 1

Kind = Literal["f32", "f16", "i32", "int8"]
_BYTES = {"f32": 4, "f16": 2, "i32": 4}
INT8_BLOCK_BYTES = 40
"""32 values, their scale (float32) and their sum (for types with minima). A buffer has room for MAX_ROWS rows: their
values, then their scales, then their sums."""

COUNTS = ("length", "fold", "behind", "external")
"""Entries of `counts`. length: tokens that the trunk has processed and kept. fold: kept rows of the last cycle that
the recurrent memories don't hold yet. behind: rows that the MTP cache lacks, the newest token's included. external:
1 when the drafts to verify come from the host."""


@dataclass(frozen=True)
class Buffer:
    """shape: in elements, the last axis along memory. kept: a sequence needs it in its next launch."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    kept: bool = False

    @property
    def nbytes(self) -> int:
        if self.kind == "int8":
            return prod(self.shape[:-1]) * -(-self.shape[-1] // BLOCK) * INT8_BLOCK_BYTES
        return prod(self.shape) * _BYTES[self.kind]

    @property
    def row_bytes(self) -> int:
        return self.nbytes // self.shape[0]


def attention_parts(kv_heads: int, sms: int) -> int:
    """Parts into which a key head's context is cut at most: about one for each SM and key head."""
    return max(1, sms // kv_heads)


def slices(state_size: int) -> int:
    """Slices of a value head: blocks of 32 values, so that an SM can scale its outputs without the others."""
    return -(-state_size // BLOCK)


def buffers(model: KernelModel, sms: int, capacity: int, logits: bool = False) -> dict[str, Buffer]:
    """All buffers by name. capacity: positions of the keys and values. They hold for every number of rows."""
    found = [*_kept(model, capacity), *_scratch(model, sms, logits)]
    return {buffer.name: buffer for buffer in found}


def _kept(model: KernelModel, capacity: int) -> list[Buffer]:
    c = model.config
    d = c.state_size
    found = [
        Buffer("counts", (len(COUNTS),), "i32", kept=True),
        Buffer("accepted", (MAX_ROWS,), "i32", kept=True),
        Buffer("given", (MAX_ROWS,), "i32", kept=True),
        Buffer("hidden", (MAX_ROWS, c.hidden), "f32", kept=True),
    ]
    for i, recurrent in enumerate(c.recurrent):
        if recurrent:
            found += [
                Buffer(f"blk.{i}.memory", (c.value_heads, d, d), "f32", kept=True),
                Buffer(f"blk.{i}.conv", (RING, c.conv_channels), "f32", kept=True),
                Buffer(f"blk.{i}.keys", (RING, c.key_heads, d), "f32", kept=True),
                Buffer(f"blk.{i}.deltas", (RING, c.value_heads, d), "f32", kept=True),
                Buffer(f"blk.{i}.decays", (RING, c.value_heads), "f32", kept=True),
            ]
    attention = [i for i, recurrent in enumerate(c.recurrent) if not recurrent] + [c.layers] * c.mtp
    for i in attention:
        found += [Buffer(f"blk.{i}.{kv}", (c.kv_heads, capacity, c.head_dim), "f16", kept=True) for kv in "kv"]
    return found


def _scratch(model: KernelModel, sms: int, logits: bool) -> list[Buffer]:
    c, rows = model.config, MAX_ROWS
    query_width = c.heads * c.head_dim
    blocks = -(-c.hidden // BLOCK)
    parts = attention_parts(c.kv_heads, sms)
    found = [
        Buffer("tokens", (rows,), "i32"),
        Buffer("x", (rows, c.hidden), "f32"),
        Buffer("x.in", (rows, c.hidden), "int8"),
        Buffer("x.low", (rows, c.hidden), "int8"),
        Buffer("x.squares", (rows, blocks), "f32"),
        Buffer("z", (rows, c.value_width), "f32"),
        Buffer("gates", (rows, 2 * c.value_heads), "f32"),
        Buffer("qkv", (rows, 2 * query_width + 2 * c.kv_heads * c.head_dim), "f32"),
        Buffer("parts", (rows, c.heads, parts, c.head_dim), "f32"),
        Buffer("parts.stats", (rows, c.heads, parts, 2), "f32"),
        Buffer("mixed.in", (rows, max(c.value_width, query_width)), "int8"),
        Buffer("mixed.squares", (rows, c.value_heads * slices(c.state_size)), "f32"),
        Buffer("ffn.in", (rows, c.ffn), "int8"),
        Buffer("sums", (sms, GROUP_ROWS, rows), "f32"),
        Buffer("best", (rows, sms, 2), "f32"),
    ]
    if c.mtp:
        found += [
            Buffer("mtp.in", (rows, 2 * c.hidden), "int8"),
            Buffer("mtp.squares", (rows, 2 * blocks), "f32"),
            Buffer("mtp.hidden", (1, c.hidden), "f32"),
            *(Buffer(f"mtp.best.{step}", (1, sms, 2), "f32") for step in range(MAX_DRAFTS)),
        ]
    if logits:
        found.append(Buffer("logits", (rows, c.vocab), "f32"))
    return found
