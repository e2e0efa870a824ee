"""Random weights as the blocks of a tensor type, made from random bytes without quantising anything.

The codes are uniform. The scales vary a little from block to block, and a little from sub-block to sub-block of the
K-quants (between half and all of the 6-bit range; Q6_K's are any int8). Offsets are drawn apart from the scales, but
so that the weights have mean 0; a reader that mistakes one for the other gets other weights.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import numpy.typing as npt

from server.gguf.types import TensorType, block_size

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]

UPPER_HALF = 0xA0A0A0A0
"""Set in the first 8 bytes of a Q4_K or Q5_K block's packed numbers, it sets bit 5 of all sixteen."""
SIX_BITS_MEAN = 47.5
SIX_BITS_SQUARE = SIX_BITS_MEAN**2 + (32**2 - 1) / 12
"""Of a uniform number in 32..63."""


def random_blocks(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
    """uint8 [count, bytes per block]: blocks whose weights have mean 0 and standard deviation `spread`.

    `MAKERS` lists the types; KeyError for others. ValueError for a spread that the type's scales can't express.
    """
    return MAKERS[type](type, count, spread, random)


def _random_bytes(count: int, size: int, random: np.random.Generator) -> Bytes:
    words: npt.NDArray[np.uint64] = random.bit_generator.random_raw(-(-count * size // 8))
    return words.view(np.uint8)[: count * size].reshape(count, size)


def _vary(column: Halves, mean: float) -> float:
    """Random bits -> halves around `mean`, within a sixteenth of it to each side. Returns their exact mean."""
    if not 2**-20 <= mean <= 2**14:
        raise ValueError(f"half-precision scales can't vary around {mean:g}")
    step = float(np.spacing(np.float16(mean)))
    mask = (1 << (int(mean / step) // 8).bit_length() - 1) - 1
    middle = int(np.float16(mean).view(np.uint16)) - mask // 2

    def mean_from(first: int) -> float:
        return float(np.arange(first, first + mask + 1, dtype=np.uint16).view(np.float16).mean(dtype=np.float64))

    first = min(range(middle - 2, middle + 2), key=lambda first: abs(mean_from(first) - mean))
    column &= np.uint16(mask)
    column += np.uint16(first)
    return mean_from(first)


def _affine(levels: int) -> Callable[[TensorType, int, float, np.random.Generator], Bytes]:
    """Q4_K and Q5_K: x = d·s·n - dmin·m, n in 0..levels - 1, s and m in 32..63."""
    mean = (levels - 1) / 2
    square = (levels**2 - 1) / 12 + mean**2
    # d = 1 and dmin = mean, so that the two terms have the same mean
    variance = SIX_BITS_SQUARE * (square + mean**2) - 2 * (SIX_BITS_MEAN * mean) ** 2

    def make(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
        raw = _random_bytes(count, block_size(type)[1], random)
        halves = raw.view(np.uint16)
        d = _vary(halves[:, 0], spread / sqrt(variance))
        _vary(halves[:, 1], d * mean)
        raw.view(np.uint32)[:, 1:3] |= np.uint32(UPPER_HALF)
        return raw

    return make


def _q6_k(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
    """x = d·s·(n - 32), n in 0..63, s any int8: products of two numbers around -1/2, of mean d/4, which is nothing."""
    raw = _random_bytes(count, block_size(type)[1], random)
    scales, codes = (256**2 - 1) / 12 + 0.25, (64**2 - 1) / 12 + 0.25
    _vary(raw.view(np.uint16)[:, 104], spread / sqrt(scales * codes))
    return raw


def _q8_0(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
    """x = d·q, q in -127..127: no quantiser writes -128, so it becomes 0."""
    raw = _random_bytes(count, block_size(type)[1], random)
    codes = raw.view(np.int8)
    d = raw.view(np.uint16)[:, 0].copy()
    _vary(d, spread / sqrt(2 * sum(q * q for q in range(128)) / 256))
    np.multiply(codes, codes != -128, out=codes)
    raw.view(np.uint16)[:, 0] = d
    return raw


def _f32(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
    return _normal(count, spread, random).view(np.uint8)


def _f16(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
    return _normal(count, spread, random).astype(np.float16).view(np.uint8)


def _bf16(type: TensorType, count: int, spread: float, random: np.random.Generator) -> Bytes:
    bits = _normal(count, spread, random).view(np.uint32)
    return ((bits + 0x8000) >> 16).astype(np.uint16).view(np.uint8)


def _normal(count: int, spread: float, random: np.random.Generator) -> npt.NDArray[np.float32]:
    x = random.standard_normal((count, 1), dtype=np.float32)
    x *= np.float32(spread)
    return x


MAKERS: dict[TensorType, Callable[[TensorType, int, float, np.random.Generator], Bytes]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _affine(16),
    TensorType.Q5_K: _affine(32),
    TensorType.Q6_K: _q6_k,
}
