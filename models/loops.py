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


CHANGE = 0.5
"""Share of loops whose repetitions differ a little: what a small model falls into often counts, grows or alternates."""


def with_loops(window: NDArray[np.int16], end: int, rng: random.Random) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """window [T + 1] -> a window of the same size in which pieces of it are repeated, and periods [T].

    Real text of 60 to 300 tokens, then its last 4 to 96 tokens three to seven times more, and so on. In half of the
    loops each repetition has one to three of its tokens replaced by other ones of the window, or some put in.
    ``periods[t]`` is 0 where token t + 1 is real text or new, otherwise how many tokens before it the same token of the
    piece stood last. A piece never holds the ``end`` token: after it comes another document, whatever it is.
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
        changes = rng.random() < CHANGE
        last = list(range(len(tokens) - length, len(tokens)))  # where each token of the piece stood last
        for _ in range(rng.randint(3, 7)):
            changed = set(rng.sample(range(length), rng.randint(1, min(3, length - 1)))) if changes else set()
            for index, token in enumerate(piece):
                if index in changed:
                    others = [t for t in window[rng.randrange(size) :][: rng.randint(1, 4)].tolist() if t != end]
                    tokens += others
                    periods += [0] * len(others)
                    if rng.random() < 0.5:  # in its place, otherwise before it
                        continue
                periods.append(len(tokens) - last[index])
                last[index] = len(tokens)
                tokens.append(token)
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
