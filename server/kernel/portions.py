"""An SM's share of a weight phase as portions: what the device code goes through, worked out once on the host.

A portion is a run of consecutive tiles of one matrix in one group. All four roles of an SM's warps walk the same list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from server.gguf.types import TensorType
from server.kernel.source import MATH_WARPS
from server.kernel.structs import TYPES
from server.kernel.tiles import Range, Strip, nameless, shared_groups


@dataclass(frozen=True)
class Portion:
    strip: int
    matrix: int
    """Which of the strip's."""
    type: TensorType
    row_tiles: int
    group: int
    first: int
    """Tile of the matrix' part of the group that it begins with."""
    count: int
    turn: int
    """The math warp that has its first tile."""
    closes: bool
    """The group ends with it."""
    foreign: bool
    """Another SM began the group, and finishes it."""
    last: bool
    """Of the SM's share."""
    sharers: int
    """How many SMs further the last one is that has tiles of this SM's last group; 0 if this SM has them all. With the
    last portion."""
    offset: int
    """Bytes of the matrix' tiles before it."""

    @property
    def words(self) -> tuple[int, int, int, int]:
        """The `PackedPortion` of `cuda/types.cuh`."""
        flags = self.closes | self.foreign << 1 | self.last << 2
        what = TYPES[self.type] | self.strip << 3 | self.matrix << 5 | self.row_tiles << 6
        return (
            self.offset // 16,
            self.group,
            self.first | self.count << 16,
            (what | flags << 9 | self.turn << 12 | self.sharers << 16),
        )


def portions(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[tuple[Portion, ...], ...]:
    """The portions of every SM, in the order of its tiles."""
    return _portions(nameless(strips), ranges)


def packed_portions(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[Tensor, tuple[Range, ...]]:
    """(int64 [portions, 4], the words of all SMs' portions one after another; which of them are an SM's). Phases that
    are alike have the same objects."""
    return _packed(nameless(strips), ranges)


@lru_cache(maxsize=64)
def _packed(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[Tensor, tuple[Range, ...]]:
    lists = _portions(strips, ranges)
    ends = list(accumulate(map(len, lists), initial=0))
    words = [portion.words for mine in lists for portion in mine]
    return torch.tensor(words, dtype=torch.int64).reshape(-1, 4), tuple(map(Range, ends, ends[1:]))


@lru_cache(maxsize=64)
def _portions(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[tuple[Portion, ...], ...]:
    sharers = {shared.finisher: shared.contributors[-1] - shared.finisher for shared in shared_groups(strips, ranges)}
    return tuple(tuple(_of_range(strips, share, sharers.get(sm, 0))) for sm, share in enumerate(ranges))


def _of_range(strips: tuple[Strip, ...], share: Range, sharers: int) -> Iterator[Portion]:
    at, foreign = share.start, None
    while at < share.stop:
        index, before = _strip_of(strips, at)
        strip = strips[index]
        group, rest = divmod(at - before, len(strip.group))
        begin = at - rest
        if foreign is None:
            foreign = begin if rest else -1
        matrix = strip.group[rest].matrix
        part = strip.row_tiles * strip.matrices[matrix].column_tiles
        first = rest - sum(strip.row_tiles * m.column_tiles for m in strip.matrices[:matrix])
        count = min(part - first, share.stop - at)
        source = strip.matrices[matrix]
        last = at + count == share.stop
        yield Portion(
            strip=index,
            matrix=matrix,
            type=source.type,
            row_tiles=strip.row_tiles,
            group=group,
            first=first,
            count=count,
            turn=(at - share.start) % MATH_WARPS,
            closes=rest + count == len(strip.group),
            foreign=foreign == begin,
            last=last,
            sharers=sharers if last and foreign != begin else 0,
            offset=(group * part + first) * source.tile_bytes,
        )
        at += count


def _strip_of(strips: tuple[Strip, ...], tile: int) -> tuple[int, int]:
    """(which strip a tile of the phase is in, tiles before that strip)."""
    before = 0
    for index, strip in enumerate(strips):
        if tile < before + strip.tiles:
            return index, before
        before += strip.tiles
    raise IndexError("the phase has fewer tiles")
