"""Training against loops: a small model that decodes greedily repeats itself, and text alone never tells it not to.

Welleck et al. 2020 ("Neural Text Generation with Unlikelihood Training", section 5.2): the model as it is being trained
continues prompts greedily, and what it repeats is made unlikely. Only its own loops show what to unlearn: they count,
grow and alternate as no made-up repetition does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from models.spans import GRAM, TIMES, repeats

EVERY = 16
"""Steps between two rounds of continuations."""
PROMPT, CONTINUATION = 384, 128
"""Tokens of a prompt and of its continuation; together a multiple of 64, as the delta rule wants it."""
MEASURED = 64
"""Tokens of a continuation that count for the share that loops, as in ``models.evaluate``."""


def repeated(ids: NDArray[np.int64], end: int) -> NDArray[np.bool_]:
    """ids [N, T] -> which tokens belong to a loop [N, T]: the second and later occurrences of an 8-gram that stands
    three times or more in its row. Nothing from a row's first ``end`` token on counts: another document comes after it.
    """
    mask = np.zeros(ids.shape, dtype=bool)
    for row, marked in zip(ids.astype(np.int32), mask, strict=True):
        stop = int(np.argmax(row == end)) if end in row else len(row)
        key, size = row.tobytes(), row.itemsize
        starts: dict[bytes, list[int]] = {}
        for i in range(stop - GRAM + 1):
            starts.setdefault(key[i * size : (i + GRAM) * size], []).append(i)
        for found in starts.values():
            if len(found) >= TIMES:
                for i in found[1:]:
                    marked[i : i + GRAM] = True
    return mask


def looping_share(ids: torch.Tensor) -> float:
    """Share of the continuations [N, T] that repeat themselves within their first 64 tokens."""
    return sum(repeats(row) for row in ids[:, :MEASURED].tolist()) / len(ids)


def unlikelihood(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean of -log(1 - p) over the tokens of ``mask``, p being a token's probability; 0 without any.

    hidden [B, T, E], targets and mask [B, T]. 1 - p is the sum over all other tokens: nothing cancels when p is nearly
    1, which is where loops are, and the gradient never vanishes there.
    """
    logits = torch.nn.functional.linear(hidden, embedding).float()
    others = logits.scatter(-1, targets[..., None], float("-inf"))
    losses = torch.logsumexp(logits, -1) - torch.logsumexp(others, -1)
    wanted = mask.float()
    return (losses * wanted).sum() / wanted.sum().clamp(min=1)


class OwnLoops:
    """The newest loops of the model in training.

    ``generate`` continues prompts [N, P] by ``CONTINUATION`` tokens; ``share`` is the share of the last round's
    continuations that loop.
    """

    def __init__(
        self, generate: Callable[[torch.Tensor], torch.Tensor], prompts: int, length: int, end: int, seed: int
    ) -> None:
        """``prompts`` of ``length`` tokens a round."""
        self.generate, self.prompts, self.length, self.end = generate, prompts, length, end
        self.rng = np.random.default_rng(seed)
        self.recent: deque[NDArray[np.int16]] = deque(maxlen=EVERY)
        self.steps = 0
        self.share = 0.0
        self.ids = torch.empty(0, length + CONTINUATION, dtype=torch.long)
        self.mask = torch.empty(0, CONTINUATION, dtype=torch.bool)

    def see(self, windows: NDArray[np.int16]) -> None:
        """Takes the windows [B, T] of a step; every 16th call, the first one too, has the last ones continued."""
        self.recent.append(windows)
        if self.steps % EVERY == 0:
            self.renew()
        self.steps += 1

    def renew(self) -> None:
        """A round: prompts at random places of the windows seen last, and the pool is what loops of them."""
        windows = np.concatenate(list(self.recent))
        rows = np.resize(self.rng.permutation(len(windows)), self.prompts)
        offsets = self.rng.integers(0, windows.shape[1] - self.length + 1, self.prompts)
        taken = windows[rows[:, None], offsets[:, None] + np.arange(self.length)]
        prompts = torch.from_numpy(taken.astype(np.int64))
        continuations = self.generate(prompts).cpu()
        self.share = looping_share(continuations)
        mask = torch.from_numpy(repeated(continuations.numpy(), self.end))
        looping = mask.any(1)
        self.ids, self.mask = torch.cat((prompts, continuations), 1)[looping], mask[looping]

    def take(self, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """``count`` loops at random: ids [count, P + T] and mask of the continuations [count, T]. None without loops.

        When there are fewer, each of them before any comes twice.
        """
        if not len(self.ids):
            return None
        chosen = torch.from_numpy(np.resize(self.rng.permutation(len(self.ids)), count))
        return self.ids[chosen], self.mask[chosen]
