"""Random weights of a network in training form that leave no part of it without effect."""

from __future__ import annotations

import torch

from models.network import Dimensions, Weights, initial_weights


def lively_weights(dims: Dimensions) -> Weights:
    """Norms far from 1 and matrices large enough for logits that differ."""
    generator = torch.Generator().manual_seed(3)

    def drawn(name: str, w: torch.Tensor) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.rand(w.shape, generator=generator) + 0.5
        if w.ndim == 2 and not name.endswith("conv1d.weight"):
            return torch.randn(w.shape, generator=generator) * w.shape[1] ** -0.5
        return w

    return {name: drawn(name, w) for name, w in initial_weights(dims, 0).items()}
