"""Training against loops: a small model that decodes greedily repeats itself, and text alone never tells it not to.

Xu et al. 2022 ("Learning to Break the Loop", DITTO): repeat a piece of real text, and ask that each repetition be less
likely than the one before it. Windows of this kind are made from ordinary ones.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from numpy.typing import NDArray

FALL = 0.5
"""What a repetition's probability is trained towards, as a share of the one before it."""
SHORTEST, LONGEST = 4, 96
"""Tokens of a repeated piece."""


def with_loops(window: NDArray[np.int16], end: int, rng: random.Random) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """window [T + 1] -> a window of the same size in which pieces of it are repeated, and periods [T].

    Real text of 60 to 300 tokens, then its last 4 to 96 tokens three to seven times more, and so on. ``periods[t]`` is
    0 where token t + 1 is real text, otherwise how many tokens before it the same token stood. A piece never holds
    the ``end`` token: after it comes another document, whatever it is.
    """
    size = len(window)
    tokens: list[int] = []
    periods: list[int] = []
    at = 0
    while len(tokens) < size:
        real = window[at : at + rng.randint(60, 300)].tolist() or window[:60].tolist()
        at += len(real)
        tokens += real
        periods += [0] * len(real)
        length = min(int(SHORTEST * (LONGEST / SHORTEST) ** rng.random()), len(real))
        piece = real[-length:]
        if end in piece or length < SHORTEST:
            continue
        times = rng.randint(3, 7)
        tokens += piece * times
        periods += [length] * (length * times)
    return np.array(tokens[:size], dtype=np.int16), np.array(periods[1:size], dtype=np.int64)


def loop_loss(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, periods: torch.Tensor
) -> torch.Tensor:
    """Mean of -log(1 - |p - FALL · p_before|) over all repeated tokens; 0 without any.

    hidden [B, T, E], targets and periods [B, T]. p is the probability of a repeated token, p_before that of the same
    token one period earlier, taken as given.
    """
    logits = torch.nn.functional.linear(hidden, embedding).float()
    chosen = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0].exp()
    before = chosen.detach().gather(1, (torch.arange(targets.shape[1], device=targets.device) - periods).clamp(min=0))
    losses = -torch.log1p(-(chosen - FALL * before).abs().clamp(max=1 - 1e-4))
    repeated = (periods > 0).float()
    return (losses * repeated).sum() / repeated.sum().clamp(min=1)
