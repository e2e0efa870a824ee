"""Sigmoid, SiLU and RMS norm whose every row has the same bits in whatever company, and with any number of threads.

Torch's own sigmoid and SiLU take vectors of 32 values by one formula and the remainder by another, and what is a
remainder depends on the number of rows and threads. exp has one formula for both; the rest is exact arithmetic.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

import torch
from torch.nn import functional as F

VECTOR = 32
"""Values that a vectorised loop takes at once at most (two AVX-512 registers of float32)."""


def silu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(x)."""
    if x.is_cuda:
        return F.silu(x)
    return x / torch.neg(x).exp_().add_(1.0)


@lru_cache(maxsize=1)
def gpu_kernels() -> ModuleType:
    from server.model import gpu_kernels

    return gpu_kernels


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of rows [gate, up]: [T, 2 n] -> [T, n]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if not _in_16_bits_on_a_gpu(gate_up):
        gate, up = gate_up.chunk(2, dim=1)
        return silu(gate).mul_(up)
    result = gate_up.new_empty(rows, width)
    k = gpu_kernels()
    k.swiglu[(rows, -(-width // k.PIECE))](gate_up, width, result)
    return result


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    if x.is_cuda:
        return torch.sigmoid(x)
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + e^x), x itself above 20, for small tensors whose last dimension is a multiple of `VECTOR`."""
    return F.softplus(x)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis, computed in the weight's type, returned in that of x."""
    if _in_16_bits_on_a_gpu(x) and weight.dtype == torch.float32:
        result = torch.empty_like(x)
        width = x.shape[-1]
        gpu_kernels().rms_norm[(x.numel() // width,)](x, weight, eps, result, width, 1 << (width - 1).bit_length())
        return result
    return torch.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


def _in_16_bits_on_a_gpu(x: torch.Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16 and x.is_contiguous()
