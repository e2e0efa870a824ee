"""Scales and codes of K-quant blocks, chosen for the least squared error of the weights.

Both searches work alike. Each sub-block is first fitted alone: several ranges are tried, weights rounded to codes,
scale (and offset) solved by least squares for those codes, the best kept. The results are then rounded to the few
bits that a block stores, and refined in turns: the block's own scales solved by least squares for the codes, then
every stored sub-block scale moved by one step where that lowers the error.

Weights come as [weights of a sub-block, sub-blocks, blocks]: sums over the first axis then run along memory.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

# How far the tried ranges stretch or cut the true one, in steps of a code.
AFFINE_MARGINS = (-1.2, -0.8, -0.5, -0.25, 0.0, 0.25, 0.5, 0.8)
SYMMETRIC_MARGINS = (-2.5, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
ROUNDS = 2
SMALLEST_HALF = 2.0**-24
TINY = 1e-30  # below every scale that a half can hold, above what overflows when inverted


def _inverse(x: Tensor) -> Tensor:
    """1/x, and 0 where x is (as good as) 0."""
    return torch.where(x.abs() > TINY, x, torch.inf).reciprocal()


def stored(d: Tensor) -> Tensor:
    """Block scales as the halves that get stored, in float32; no positive one vanishes."""
    return torch.where(d > 0, d.half().float().clamp(min=SMALLEST_HALF), d.half().float())


def _codes(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    return (x * _inverse(scale)).round_().clamp_(low, high)


class _Sums:
    """The sums over a sub-block that least squares needs, each [sub-blocks, blocks]."""

    def __init__(self, x: Tensor, codes: Tensor) -> None:
        self.qx = (codes * x).sum(0)
        self.qq = (codes * codes).sum(0)
        self.q = codes.sum(0)


def search_affine(x: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x ~ d * scale * code - dmin * min, codes 0..top, scales and mins 0..63, d and dmin halves.

    x: float32 [32, 8, n] -> d [n], dmin [n] (float16), scales [8, n], mins [8, n], codes [32, 8, n] (uint8).
    """
    scale, offset = _fit_affine(x, top)
    d, dmin = stored(scale.amax(0) / 63), stored(offset.amax(0) / 63)
    scales = (scale * _inverse(d)).round_().clamp_(0, 63)
    mins = (offset * _inverse(dmin)).round_().clamp_(0, 63)
    x_sum = x.sum(0)
    for _ in range(ROUNDS):
        sums = _Sums(x, _codes(x + dmin * mins, d * scales, 0, top))
        d, dmin = _solve_block(sums, x_sum, len(x), scales, mins, d, dmin)
        scales, mins = _step_affine(x, x_sum, d, dmin, scales, mins, top)
    codes = _codes(x + dmin * mins, d * scales, 0, top)
    return d.half(), dmin.half(), scales.byte(), mins.byte(), codes.byte()


def _fit_affine(x: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Every sub-block alone: (scale, offset >= 0) of x ~ scale * code - offset, [8, n] each."""
    count = len(x)
    x_sum = x.sum(0)
    low = x.amin(0).clamp_(max=0)
    shifted = x - low
    span = x.amax(0) - low
    best = torch.full_like(low, torch.inf)
    best_scale, best_offset = torch.zeros_like(low), torch.zeros_like(low)
    for margin in AFFINE_MARGINS:
        sums = _Sums(x, _codes(shifted, span / (top + margin), 0, top))
        determinant = count * sums.qq - sums.q * sums.q
        scale = (count * sums.qx - sums.q * x_sum) * _inverse(determinant)
        offset = (scale * sums.q - x_sum) / count
        no_offset = offset <= 0
        scale = torch.where(no_offset, sums.qx * _inverse(sums.qq), scale)
        offset = torch.where(no_offset, 0, offset)
        error = _affine_error(sums, x_sum, count, scale, offset)
        better = error < best
        best = torch.where(better, error, best)
        best_scale = torch.where(better, scale, best_scale)
        best_offset = torch.where(better, offset, best_offset)
    return best_scale.clamp_(min=0), best_offset


def _affine_error(sums: _Sums, x_sum: Tensor, count: int, scale: Tensor, offset: Tensor) -> Tensor:
    """The squared error less the (constant) sum of x squared."""
    return scale * (scale * sums.qq - 2 * sums.qx) + offset * (count * offset + 2 * x_sum - 2 * scale * sums.q)


def _solve_block(
    sums: _Sums, x_sum: Tensor, count: int, scales: Tensor, mins: Tensor, d: Tensor, dmin: Tensor
) -> tuple[Tensor, Tensor]:
    """d and dmin by least squares for given codes, scales and mins, as the halves that get stored (in float32)."""
    uu = (scales * scales * sums.qq).sum(0)
    uv = (scales * mins * sums.q).sum(0)
    vv = (mins * mins).sum(0) * count
    ux = (scales * sums.qx).sum(0)
    vx = (mins * x_sum).sum(0)
    inverse = _inverse(uu * vv - uv * uv)
    no_mins = vv == 0
    new_d = stored(torch.where(no_mins, ux * _inverse(uu), (vv * ux - uv * vx) * inverse))
    new_dmin = stored(torch.where(no_mins, dmin, (uv * ux - uu * vx) * inverse))

    def error(d: Tensor, dmin: Tensor) -> Tensor:
        return d * (d * uu - 2 * ux) + dmin * (dmin * vv + 2 * vx - 2 * d * uv)

    # nearly dependent equations have solutions that don't survive rounding to halves
    better = (new_d > 0) & (new_dmin >= 0) & (error(new_d, new_dmin) < error(d, dmin))
    return torch.where(better, new_d, d), torch.where(better, new_dmin, dmin)


def _step_affine(
    x: Tensor, x_sum: Tensor, d: Tensor, dmin: Tensor, scales: Tensor, mins: Tensor, top: int
) -> tuple[Tensor, Tensor]:
    best = torch.full_like(scales, torch.inf)
    best_scales, best_mins = scales, mins
    for scale_step, min_step in product((0, -1, 1), repeat=2):
        tried_scales = (scales + scale_step).clamp_(0, 63)
        tried_mins = (mins + min_step).clamp_(0, 63)
        scale, offset = d * tried_scales, dmin * tried_mins
        sums = _Sums(x, _codes(x + offset, scale, 0, top))
        error = _affine_error(sums, x_sum, len(x), scale, offset)
        better = error < best
        best = torch.where(better, error, best)
        best_scales = torch.where(better, tried_scales, best_scales)
        best_mins = torch.where(better, tried_mins, best_mins)
    return best_scales, best_mins


def search_symmetric(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x ~ d * scale * code, codes -32..31, scales -128..127, d a half.

    x: float32 [16, 16, n] -> d [n] (float16), scales [16, n] (int8), codes [16, 16, n] (int8).
    """
    scale = _fit_symmetric(x)
    extreme = scale.gather(0, scale.abs().argmax(0, keepdim=True))[0]
    d = _stored_signed(extreme / -128)
    scales = (scale * _inverse(d)).round_().clamp_(-128, 127)
    for _ in range(ROUNDS):
        sums = _Sums(x, _codes(x, d * scales, -32, 31))
        solved = (scales * sums.qx).sum(0) * _inverse((scales * scales * sums.qq).sum(0))
        d = _stored_signed(torch.where(solved == 0, d, solved))
        scales = _step_symmetric(x, d, scales)
    return d.half(), scales.to(torch.int8), _codes(x, d * scales, -32, 31).to(torch.int8)


def _stored_signed(d: Tensor) -> Tensor:
    return stored(d.abs()) * d.sign()


def _fit_symmetric(x: Tensor) -> Tensor:
    """Every sub-block alone: scale (of either sign) of x ~ scale * code, [16, n]."""
    extreme = x.gather(0, x.abs().argmax(0, keepdim=True))[0]
    best = torch.full_like(extreme, -1)
    best_scale = torch.zeros_like(extreme)
    for sign, margin in product((-1, 1), SYMMETRIC_MARGINS):
        sums = _Sums(x, _codes(x, extreme / (sign * (31.5 + margin)), -32, 31))
        scale = sums.qx * _inverse(sums.qq)
        gain = scale * sums.qx  # what the fit takes off the sum of x squared
        better = gain > best
        best = torch.where(better, gain, best)
        best_scale = torch.where(better, scale, best_scale)
    return best_scale


def _step_symmetric(x: Tensor, d: Tensor, scales: Tensor) -> Tensor:
    best = torch.full_like(scales, torch.inf)
    best_scales = scales
    for step in (0, -1, 1):
        tried = (scales + step).clamp_(-128, 127)
        scale = d * tried
        sums = _Sums(x, _codes(x, scale, -32, 31))
        error = scale * (scale * sums.qq - 2 * sums.qx)
        better = error < best
        best = torch.where(better, error, best)
        best_scales = torch.where(better, tried, best_scales)
    return best_scales
