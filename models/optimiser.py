"""Muon for the hidden matrices, AdamW for everything else."""

from __future__ import annotations

import torch

Weights = dict[str, torch.Tensor]


def is_hidden_matrix(name: str, weight: torch.Tensor) -> bool:
    """The matrices that Muon updates: neither embeddings nor the very thin ones."""
    return weight.ndim == 2 and "embd" not in name and min(weight.shape) >= 64


def orthogonalise(x: torch.Tensor) -> torch.Tensor:
    """Nearly the closest semi-orthogonal matrices of a batch [N, R, C], by five Newton-Schulz steps (bfloat16 on GPUs).

    The quintic and its coefficients are Keller Jordan's (2024): singular values end in about 0.7 to 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    y: torch.Tensor = x.bfloat16() if x.is_cuda else x
    tall = y.shape[-2] > y.shape[-1]
    if tall:
        y = y.mT
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.mT if tall else y


class Muon:
    """Momentum whose update is orthogonalised; matrices of one shape are updated as one batch.

    Updates are scaled by 0.2·sqrt(max(rows, columns)), so that one rate serves Muon and AdamW (Liu et al. 2025).
    """

    def __init__(self, weights: Weights, momentum: float = 0.95, decay: float = 0.1) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[torch.Size, list[torch.Tensor]] = {}
        for name, weight in weights.items():
            if is_hidden_matrix(name, weight):
                self.groups.setdefault(weight.shape, []).append(weight)
        self.buffers = {s: torch.zeros(len(g), *s, device=g[0].device) for s, g in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradients = torch.stack([w.grad for w in group if w.grad is not None])
            buffer = self.buffers[shape].lerp_(gradients, 1 - self.momentum)
            update = orthogonalise(gradients.lerp(buffer, self.momentum))
            scale = -rate * 0.2 * max(shape) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self.decay)
            torch._foreach_add_(group, list(update.float().unbind(0)), alpha=scale)


def adamw(weights: Weights, rate: float) -> torch.optim.AdamW:
    """AdamW without decay over the embedding, norms, convolutions and gates."""
    others = [w for name, w in weights.items() if not is_hidden_matrix(name, w)]
    return torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=others[0].is_cuda)
