"""What happens to files: flipped bits, cut ends, holes, pieces that are gone or there twice."""

from __future__ import annotations

import random

KINDS = 5
BEGINNING = 300
"""Bytes: headers are here, and every other place would seldom be."""


def damaged(whole: bytes, rng: random.Random, kind: int) -> bytes:
    """``whole`` (not empty) with a fault at a place of chance. kind: which one, modulo KINDS."""
    at = rng.randrange(min(BEGINNING, len(whole))) if kind % 4 == 0 else rng.randrange(len(whole))
    more = rng.randrange(1, 4000)
    return (
        whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :],
        whole[:at],
        whole[:at] + whole[at + more :],
        whole[:at] + bytes(len(whole[at : at + more])) + whole[at + more :],
        whole[: at + more] + whole[at:],
    )[kind % KINDS]
