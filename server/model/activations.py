"""Sigmoid, SiLU and RMS norm whose every row has the same bits in whatever company, and with any number of threads.

Torch's own sigmoid and SiLU take vectors of 32 values by one formula and the remainder by another, and what is a
remainder depends on the number of rows and threads. exp has one formula for both; the rest is exact arithmetic.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

VECTOR = 32
"""Values that a vectorised loop takes at once at most (two AVX-512 registers of float32)."""


def silu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(x)."""
    if x.is_cuda:
        return F.silu(x)
    return x / torch.neg(x).exp_().add_(1.0)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    if x.is_cuda:
        return torch.sigmoid(x)
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + e^x), x itself above 20, for small tensors whose last dimension is a multiple of `VECTOR`."""
    return F.softplus(x)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis, computed in the weight's type, returned in that of x."""
    return torch.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
