"""Find files that are nearly copies of an earlier file.

A file is the set of its stripped non-blank lines, each as a CRC-32. MinHash signatures cut into bands propose
pairs (Broder 1997; Leskovec et al., Mining of Massive Datasets, ch. 3), and the sets themselves decide: a
pair counts when its Jaccard likeness, |A and B| / |A or B|, is at least ``THRESHOLD``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]

THRESHOLD = 0.6
BANDS, ROWS = 21, 3  # proposes 99.4 % of the pairs at likeness 0.6: 1 - (1 - 0.6**3)**21
MIN_AGREEMENT = 0.4  # share of equal signature entries below which the sets aren't even compared
MAX_COMPARED = 64  # survivors of one bucket a file is compared with, so boilerplate can't make this quadratic

_random = np.random.default_rng(20_240_229)
_FACTORS = _random.integers(1, 2**63, BANDS * ROWS, dtype=np.uint64) | np.uint64(1)
_OFFSETS = _random.integers(0, 2**63, BANDS * ROWS, dtype=np.uint64)


def line_hashes(text: str) -> Hashes:
    """Return the sorted distinct CRC-32s of the stripped non-blank lines of ``text``."""
    lines = {line.strip() for line in text.encode().split(b"\n")}
    lines.discard(b"")
    return np.unique(np.fromiter(map(zlib.crc32, lines), dtype=np.uint32, count=len(lines)))


def signature(hashes: Hashes) -> Hashes:
    """Return the MinHash signature, shape (BANDS * ROWS,), of a non-empty set of line hashes."""
    mixed = hashes.astype(np.uint64)[:, None] * _FACTORS + _OFFSETS  # wraps modulo 2**64 on purpose
    smallest: Hashes = (mixed >> np.uint64(32)).astype(np.uint32).min(axis=0)
    return smallest


def likeness(left: Hashes, right: Hashes) -> float:
    """Return the Jaccard likeness of two sorted sets of line hashes."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / (len(left) + len(right) - common)


def near_duplicates(sets: Sequence[Hashes], signatures: Sequence[Hashes]) -> list[int]:
    """Return, ascending, the indices of files nearly equal to an earlier file that itself stays.

    Put the files that must survive first: an earlier file is never dropped for a later one.
    """
    table = np.stack(signatures) if len(signatures) else np.empty((0, BANDS * ROWS), np.uint32)
    keys = [[row.tobytes() for row in table[:, b * ROWS : (b + 1) * ROWS]] for b in range(BANDS)]
    buckets: list[dict[bytes, list[int]]] = [{} for _ in range(BANDS)]
    dropped: list[int] = []
    for index in range(len(sets)):
        candidates: set[int] = set()
        for band in range(BANDS):
            candidates.update(buckets[band].get(keys[band][index], ()))
        if candidates and _has_twin(index, np.fromiter(sorted(candidates), np.int64), sets, table):
            dropped.append(index)
            continue
        for band in range(BANDS):
            bucket = buckets[band].setdefault(keys[band][index], [])
            if len(bucket) < MAX_COMPARED:
                bucket.append(index)
    return dropped


def _has_twin(index: int, candidates: npt.NDArray[np.int64], sets: Sequence[Hashes], table: Hashes) -> bool:
    """Tell whether a candidate, tried the most promising first, is nearly equal to the file at ``index``."""
    agreement = (table[candidates] == table[index]).mean(axis=1)
    for position in np.argsort(-agreement, kind="stable")[:MAX_COMPARED]:
        if agreement[position] < MIN_AGREEMENT:
            return False
        if likeness(sets[index], sets[int(candidates[position])]) >= THRESHOLD:
            return True
    return False
