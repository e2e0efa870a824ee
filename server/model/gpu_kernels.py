"""What torch has no kernel of its own for, in Triton, which comes with torch for CUDA: imported only on a GPU.

The recurrence's vectors are [head][row][size]; a program has one head and, but for `advance`, one chunk of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 64
BLOCK = 16
"""Rows of the blocks that are inverted row by row."""
FINISHED_ROWS = 32
PIECE = 1024
"""Values of a row that a program of `swiglu` has."""
_L2_EPS = 1e-6


@triton.jit
def convolve(
    mixed, stride, rows, window, taps, channels, vectors, padded,
    vector_heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, kernel: tl.constexpr,
    chunk: tl.constexpr = CHUNK, eps: tl.constexpr = _L2_EPS,
):  # fmt: skip
    """silu(convolution) of a head's channels; queries and keys also to length 1, queries over sqrt(size)."""
    first, head = tl.program_id(0) * chunk, tl.program_id(1)
    row = first + tl.arange(0, chunk)
    channel = head * size + tl.arange(0, size)
    total = tl.zeros([chunk, size], dtype=tl.float32)
    for tap in tl.static_range(kernel):
        at = row + tap - (kernel - 1)
        new = tl.load(
            mixed + at.to(tl.int64)[:, None] * stride + channel[None, :], (at >= 0)[:, None] & (at < rows)[:, None], 0.0
        )
        before = tl.load(window + (at + kernel - 1)[:, None] * channels + channel[None, :], (at < 0)[:, None], 0.0)
        weight = tl.load(taps + tap * channels + channel)
        total += (new.to(tl.float32) + before) * weight[None, :]
    total = total / (1.0 + tl.exp(-total))
    if head < vector_heads:
        factor = 1.0 / tl.sqrt(tl.sum(total * total, 1) + eps)
        if head < key_heads:
            factor = factor * (size**-0.5)
        total = total * factor[:, None]
    total = tl.where((row < rows)[:, None], total, 0.0)
    place = (head.to(tl.int64) * padded + row)[:, None] * size + tl.arange(0, size)[None, :]
    tl.store(vectors + place, total)


@triton.jit
def solve(
    mixed, stride, rows, first_gate, gates, time_bias, log_decay, vectors, padded, solved, weights, decays,
    key_heads: tl.constexpr, heads: tl.constexpr, size: tl.constexpr,
    chunk: tl.constexpr = CHUNK, block: tl.constexpr = BLOCK,
):  # fmt: skip
    """What of a chunk doesn't need the memory: the system solved for V and for e^G K, the rows' weights, G."""
    first, head = tl.program_id(0) * chunk, tl.program_id(1)
    row, dim = first + tl.arange(0, chunk), tl.arange(0, size)
    there = row < rows
    gate = mixed + row.to(tl.int64) * stride + first_gate + head
    beta = tl.load(gate, there, 0.0).to(tl.float32)
    beta = tl.where(there, 1.0 / (1.0 + tl.exp(-beta)), 0.0)
    a = tl.load(gate + gates, there, 0.0).to(tl.float32) + tl.load(time_bias + head)
    softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    total = tl.cumsum(tl.where(there, softplus * tl.load(log_decay + head), 0.0), 0)
    tl.store(decays + head * padded + row, total)

    key_head = head % key_heads
    at = row[:, None] * size + dim[None, :]
    plane = padded.to(tl.int64) * size
    query = tl.load(vectors + key_head * plane + at)
    key = tl.load(vectors + (key_heads + key_head) * plane + at)
    value = tl.load(vectors + (2 * key_heads + head) * plane + at)
    # Γ: subtracted first, then exp, for a quotient of exponentials would overflow.
    t, s = tl.arange(0, chunk)[:, None], tl.arange(0, chunk)[None, :]
    gamma = tl.exp(tl.where(t >= s, total[:, None] - total[None, :], 0.0))
    products = tl.dot(query, tl.trans(key), input_precision="tf32")
    tl.store(weights + (head.to(tl.int64) * padded + row)[:, None] * chunk + s, tl.where(t >= s, products * gamma, 0.0))
    system = tl.dot(key, tl.trans(key), input_precision="tf32") * gamma * beta[:, None]
    # (I + A)⁻¹. First of the blocks on the diagonal, all at a time, row after row: row n is -A_n - A_n (rows before).
    within = (t // block == s // block) & (t > s)
    blocks = tl.where(within, -system, 0.0)
    for n in range(1, block):
        mine = tl.sum(tl.where(t % block == n, blocks, 0.0), 0)
        mine += tl.sum(tl.trans(mine[None, :]) * blocks, 0)
        blocks = tl.where(within & (t % block == n), mine[None, :], blocks)
    one = tl.where(t == s, 1.0, 0.0)
    blocks += one
    # Then with N below them: (I + M)⁻¹ blocks with M = blocks N, whose fourth power is zero: (I - M) (I + M²).
    below = tl.dot(blocks, tl.where(t // block > s // block, system, 0.0), input_precision="tf32x3")
    series = tl.dot(one - below, one + tl.dot(below, below, input_precision="tf32x3"), input_precision="tf32x3")
    inverse = tl.dot(series, blocks, input_precision="tf32x3")
    solved_at = solved + head * plane + at
    tl.store(solved_at, tl.dot(inverse, value * beta[:, None], input_precision="tf32"))
    scaled = key * (beta * tl.exp(total))[:, None]
    tl.store(solved_at + heads * plane, tl.dot(inverse, scaled, input_precision="tf32"))


@triton.jit
def advance(
    vectors, padded, chunks, solved, weights, decays, memory, out,
    key_heads: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, columns: tl.constexpr,
    chunk: tl.constexpr = CHUNK,
):  # fmt: skip
    """Chunk after chunk: outputs, and the memory. A program has some columns of a head's memory."""
    head, block = tl.program_id(0), tl.program_id(1)
    key_head = head % key_heads
    dim, column = tl.arange(0, size), block * columns + tl.arange(0, columns)
    plane = padded.to(tl.int64) * size
    state_at = memory + head * size * size + dim[:, None] * size + column[None, :]
    state = tl.load(state_at)
    for n in range(chunks):
        row = n * chunk + tl.arange(0, chunk)
        wide, narrow = row[:, None] * size + dim[None, :], row[:, None] * size + column[None, :]
        total = tl.load(decays + head * padded + row)
        end = tl.load(decays + head * padded + n * chunk + chunk - 1)
        update = tl.load(solved + head * plane + narrow)
        update -= tl.dot(tl.load(solved + (heads + head) * plane + wide), state, input_precision="tf32")
        query = tl.load(vectors + key_head * plane + wide) * tl.exp(total)[:, None]
        result = tl.dot(query, state, input_precision="tf32")
        within = tl.load(weights + (head.to(tl.int64) * padded + row)[:, None] * chunk + tl.arange(0, chunk)[None, :])
        result += tl.dot(within, update, input_precision="tf32")
        tl.store(out + head * plane + narrow, result)
        key = tl.load(vectors + (key_heads + key_head) * plane + wide) * tl.exp(end - total)[:, None]
        state = state * tl.exp(end) + tl.dot(tl.trans(key), update, input_precision="tf32")
    tl.store(state_at, state)


@triton.jit
def finish(
    out, padded, rows, mixed, stride, first_gate, norm, eps, result,
    heads: tl.constexpr, size: tl.constexpr, count: tl.constexpr = FINISHED_ROWS,
):  # fmt: skip
    """norm(o) · silu(z)."""
    row, head = tl.program_id(0) * count + tl.arange(0, count), tl.program_id(1)
    dim = tl.arange(0, size)
    there = (row < rows)[:, None]
    x = tl.load(out + (head.to(tl.int64) * padded + row)[:, None] * size + dim[None, :], there, 0.0)
    z = tl.load(mixed + row.to(tl.int64)[:, None] * stride + first_gate + head * size + dim[None, :], there, 0.0).to(
        tl.float32
    )
    x = x / tl.sqrt(tl.sum(x * x, 1) / size + eps)[:, None] * tl.load(norm + dim)[None, :]
    y = x * (z / (1.0 + tl.exp(-z)))
    place = row.to(tl.int64)[:, None] * (heads * size) + head * size + dim[None, :]
    tl.store(result + place, y.to(result.dtype.element_ty), there)


@triton.jit
def swiglu(gate_up, width, result, count: tl.constexpr = PIECE):
    """silu(gate) · up of rows [gate, up], each of `width` values."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * count + tl.arange(0, count)
    there = column < width
    gate = tl.load(gate_up + row * 2 * width + column, there, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, there, 0.0).to(tl.float32)
    tl.store(result + row * width + column, (gate / (1.0 + tl.exp(-gate)) * up).to(result.dtype.element_ty), there)


@triton.jit
def rms_norm(x, weight, eps, result, width: tl.constexpr, room: tl.constexpr):
    """x / sqrt(mean(x²) + eps) · weight of a row; room: the power of two that has room for it."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, room)
    there = column < width
    values = tl.load(x + row * width + column, there, 0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + eps)
    scaled = values * factor * tl.load(weight + column, there, 0.0)
    tl.store(result + row * width + column, scaled.to(result.dtype.element_ty), there)
