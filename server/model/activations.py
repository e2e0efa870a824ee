"""Sigmoid, SiLU and RMS norm whose every row has the same bits in whatever company it is computed.

Torch computes an elementwise function over vectors of 32 values and what remains with another formula, and
splits large tensors between threads at any element. Where rows are whole vectors and splits fall between vectors
the built-in functions are safe, otherwise exp is used, which has one formula for both.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

VECTOR = 32
"""Values a vectorised loop takes at once at most (two AVX-512 registers of float32)."""
_GRAIN = 32768
"""Elements from which on torch splits an elementwise loop between threads."""


def _whole_vectors(x: torch.Tensor) -> bool:
    if x.device.type != "cpu":
        return True  # a GPU has one formula
    if x.shape[-1] % VECTOR:
        return False
    elements = x.numel()
    if elements <= _GRAIN:
        return True
    threads = min(torch.get_num_threads(), -(-elements // _GRAIN))
    return -(-elements // threads) % VECTOR == 0


def silu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(x)."""
    return F.silu(x) if _whole_vectors(x) else x / torch.exp(-x).add_(1.0)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) if _whole_vectors(x) else torch.exp(-x).add_(1.0).reciprocal_()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + e^x), x itself above 20. The last dimension must be whole vectors (`VECTOR`) and the tensor small."""
    return F.softplus(x)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis, computed in the weight's type, returned in that of x."""
    wide = torch.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)
    return wide.to(x.dtype)
