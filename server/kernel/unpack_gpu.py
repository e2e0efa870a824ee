"""`pack.unpack` for prompts, in Triton, which comes with torch for CUDA: imported only on a GPU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from server.gguf.types import TensorType
from server.kernel.structs import TYPES
from server.kernel.tiles import TILE_BYTES, TILE_COLUMNS, TILE_ROWS


def unpack_into(out: Tensor, tiles: Tensor, type: TensorType, every: tuple[int, int, int]) -> None:
    """Rows of a matrix into out [rows, columns], in its type. every: (of so many rows, from this one on, so many),
    again and again."""
    groups, column_tiles, row_tiles, _ = tiles.shape
    period, first, count = every
    _unpack[(groups * column_tiles * row_tiles,)](
        tiles, out, len(out), out.shape[1], column_tiles, row_tiles, period, first, count,
        kind=TYPES[type], nbytes=TILE_BYTES[type], width=TILE_COLUMNS[type], tile_rows=TILE_ROWS,
    )  # fmt: skip


@triton.jit
def _word(at):
    return tl.load(at.to(tl.pointer_type(tl.uint32)))


@triton.jit
def _half(at):
    return tl.load(at.to(tl.pointer_type(tl.float16))).to(tl.float32)


@triton.jit
def _unpack(
    tiles, out, out_rows, columns, column_tiles, row_tiles, period, first, count,
    kind: tl.constexpr, nbytes: tl.constexpr, width: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    """A program has a tile; server/kernel/pack.py says where in it a weight's bytes are. In blocks of 32 columns.

    kind: a number of `structs.TYPES`.
    """
    number = tl.program_id(0)
    row_tile = number % row_tiles
    column_tile = number // row_tiles % column_tiles
    group = number // (row_tiles * column_tiles)
    tile = tiles + number.to(tl.int64) * nbytes
    row = tl.arange(0, tile_rows)[:, None, None]
    block = tl.arange(0, width // 32)[None, :, None]
    k = tl.arange(0, 32)[None, None, :]
    g, h = row % 8, row // 8
    column = block * 32 + k
    if kind == 0:
        at = tile + column // 16 * 1024 + h * 512 + (4 * g + column % 16 // 4) * 16 + column % 4 * 4
        value = _word(at).to(tl.float32, bitcast=True)
    elif kind <= 2:
        lane, word = 4 * g + column % 16 // 4, 2 * (column % 4 // 2) + h
        at = tile + column // 16 * 512 + lane * 16 + word * 4 + column % 2 * 2
        value = tl.load(at.to(tl.pointer_type(tl.float16 if kind == 1 else tl.bfloat16))).to(tl.float32)
    else:
        lane, register, byte = 4 * g + k % 16 // 4, 2 * (k // 16) + h, k % 4
        if kind == 3:
            codes = tl.load((tile + block * 512 + lane * 16 + register * 4 + byte).to(tl.pointer_type(tl.int8)))
            value = codes.to(tl.float32) * _half(tile + 4096 + g * 32 + h * 16 + block * 2)
        else:
            pair, odd = block // 2, block % 2
            codes = tl.load(tile + pair * 512 + lane * 16 + register * 4 + byte).to(tl.int32) >> (4 * odd) & 15
            if kind == 6:
                two = tl.load(tile + 2048 + pair * 256 + lane * 8 + odd * 4 + byte).to(tl.int32) >> (2 * register) & 3
                codes |= two << 4
                scale = tl.load(tile + 3072 + row * 16 + column // 16).to(tl.int32) - 128
                value = (codes - 64 * (codes >> 5)).to(tl.float32) * (_half(tile + 3328 + g * 4 + h * 2) * scale)
            else:
                behind = 2048
                if kind == 5:
                    fifth = tl.load(tile + 2048 + lane * 16 + pair * 4 + byte).to(tl.int32)
                    codes |= (fifth >> (4 * odd + register) & 1) << 4
                    behind = 2560
                scale = tl.load(tile + behind + g * 16 + h * 8 + block).to(tl.float32)
                least = tl.load(tile + behind + 128 + (4 * g + pair) * 4 + 2 * h + odd).to(tl.float32)
                d = _half(tile + behind + 256 + g * 8 + h * 4)
                dmin = _half(tile + behind + 256 + g * 8 + h * 4 + 2)
                value = codes.to(tl.float32) * (d * scale) - dmin * least
    at_row = (group * row_tiles + row_tile) * tile_rows + row
    within = at_row % period - first
    to = at_row // period * count + within
    at_column = column_tile * width + column
    there = (within >= 0) & (within < count) & (to < out_rows) & (at_column < columns)
    tl.store(out + to.to(tl.int64) * columns + at_column, value.to(out.dtype.element_ty), there)
