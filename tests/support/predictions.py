"""Texts that an answer may be expected to copy: right, wrong and everything between."""

from __future__ import annotations

import random
from collections.abc import Sequence

from server.speculation.copies import CopyTimes


class CopiesCostNothing(CopyTimes):
    """Times by which as many copied drafts as there are always pay."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 1.0

    def seconds(self, length: int) -> float:
        return 1.0

    def add(self, length: int, seconds: float) -> None:
        pass


def predictions(truth: Sequence[int], vocabulary: int, context: int) -> dict[str, tuple[int, ...]]:
    """truth: the answer. context: tokens of one; the longest prediction has more."""
    rng = random.Random(1)
    shuffled = list(truth)
    rng.shuffle(shuffled)
    found: dict[str, Sequence[int]] = {
        "right": truth,
        "empty": (),
        "one token": truth[:1],
        "wrong": [(token + 1) % vocabulary for token in truth],
        "shuffled": shuffled,
        "longer than the context": [*truth, *truth] * (context // len(truth) + 1),
        "without its beginning": truth[7:],
        "without its middle": [*truth[:9], *truth[21:]],
        "with a block moved": [*truth[20:33], *truth[:20], *truth[33:]],
        "lines twice": [token for start in range(0, len(truth), 6) for token in [*truth[start : start + 6]] * 2],
    }
    for every in range(2, 18):
        found[f"every {every}th wrong"] = [
            (token + 1) % vocabulary if place % every == every - 1 else token for place, token in enumerate(truth)
        ]
        inserted = [[rng.randrange(vocabulary), token] if n % every == 1 else [token] for n, token in enumerate(truth)]
        found[f"one too many before every {every}th"] = [token for part in inserted for token in part]
    return {name: tuple(tokens) for name, tokens in found.items()}
