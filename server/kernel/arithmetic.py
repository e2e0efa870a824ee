"""How the interpreter computes: number types, and the rounding of activations and of the cache that a kernel has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from server.kernel.buffers import BLOCK, Buffer


@dataclass(frozen=True)
class Arithmetic:
    """dtype: float32 or float64, of everything. int8: inputs of matrices are rounded to 8 bits, 32 values a scale.
    half_cache: keys and values are kept in float16."""

    dtype: torch.dtype = torch.float32
    int8: bool = False
    half_cache: bool = False

    def rounded(self, x: Tensor, segments: int = 1) -> Tensor:
        """x [T, K] as a matrix will see it. Blocks begin anew in each of the `segments` equal parts of a row.

        A block's scale is max |x| / 127, its values round(x / scale): what a consumer multiplies and adds.
        """
        if not self.int8:
            return x
        rows, width = x.shape
        parts = x.view(rows, segments, width // segments)
        padded = torch.nn.functional.pad(parts, (0, -parts.shape[2] % BLOCK))
        blocks = padded.view(rows, segments, -1, BLOCK)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        quantised = torch.round(blocks / scale.where(scale > 0, 1.0)) * scale
        return quantised.view(rows, segments, -1)[:, :, : parts.shape[2]].reshape(rows, width)

    def left(self, x: Tensor, rounded: Tensor) -> Tensor:
        """What rounding x [T, K] left, in 8 bits too: with scales of max |x| / 127 / 254 it lies within ± 127."""
        if not self.int8:
            return torch.zeros_like(x)
        rows, width = x.shape
        pad = (0, -width % BLOCK)
        blocks, rest = (torch.nn.functional.pad(y, pad).view(rows, -1, BLOCK) for y in (x, x - rounded))
        scale = blocks.abs().amax(-1, keepdim=True) / 127 / 254
        return (torch.round(rest / scale.where(scale > 0, 1.0)) * scale).view(rows, -1)[:, :width]

    def new(self, buffer: Buffer, device: torch.device) -> Tensor:
        """The buffer full of zeros. Blocks of 8 bits are held as the values that they stand for."""
        if buffer.kind == "i32":
            return torch.zeros(buffer.shape, dtype=torch.int64, device=device)
        half = buffer.kind == "f16" and self.half_cache
        return torch.zeros(buffer.shape, dtype=torch.float16 if half else self.dtype, device=device)


def square_sums(x: Tensor, segments: int = 1) -> Tensor:
    """x [T, K] -> sums of x² by blocks of 32, [T, segments · blocks]; blocks begin anew in each segment."""
    rows, width = x.shape
    parts = x.view(rows, segments, width // segments)
    padded = torch.nn.functional.pad(parts, (0, -parts.shape[2] % BLOCK))
    return padded.square().view(rows, -1, BLOCK).sum(-1)


def row_products(x: Tensor, matrix: Tensor) -> Tensor:
    """x [T, K], matrix [N, K] -> [T, N], a row at a time: its bits don't depend on the rows beside it."""
    return torch.cat([row @ matrix.t() for row in x[:, None].unbind(0)])


def multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a · b + c; of float32 to the bit what a GPU's fused operation gives, which rounds once."""
    if c.dtype != torch.float32:
        return a * b + c
    product, addend = a.double() * b.double(), c.double()  # exact
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    # What the sum in float64 has lost decides only ties of the next rounding: an odd last bit stands for it.
    bits = total.view(torch.int64)
    step = torch.where((lost > 0) == (total > 0), 1, -1)
    bits = torch.where((lost != 0) & (bits & 1 == 0), bits + step, bits)
    return bits.view(torch.float64).float()
