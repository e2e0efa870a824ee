"""Weights as tiles of 16 rows, their linear order within a phase, and the split of that order over the SMs by bytes.

A phase streams one or several matrices that have the same input. Its order is fixed: strip after strip, group after
group, in a group matrix after matrix (gate, then up), in a matrix column tile after column tile, in that row tile after
row tile. A group is what one SM finishes: the rows whose outputs are scaled, combined and handed on together. An SM
owns one contiguous range, so it continues at most one group, with its first tiles; the SM that begins a group finishes
it. All groups and all tiles are whole: rows and columns that a matrix doesn't have are zeros (see `pack`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from server.gguf.types import TensorType

TILE_ROWS = 16
"""Rows of a tile: those of one tensor-core fragment."""
GROUP_ROWS = 64
"""Rows of a matrix in a group, at most."""
TILE_COLUMNS = {
    TensorType.F32: 64,
    TensorType.F16: 128,
    TensorType.BF16: 128,
    TensorType.Q8_0: 256,
    TensorType.Q4_K: 256,
    TensorType.Q5_K: 256,
    TensorType.Q6_K: 256,
}
"""Columns of a tile. Wide types have fewer: otherwise their tiles would be too large to balance."""
TILE_BYTES = {
    TensorType.F32: 4096,
    TensorType.F16: 4096,
    TensorType.BF16: 4096,
    TensorType.Q8_0: 4352,
    TensorType.Q4_K: 2368,
    TensorType.Q5_K: 2880,
    TensorType.Q6_K: 3360,
}
"""Bytes of a tile in device memory. K-quants of 4 and 5 bits have their 6-bit scales and minima widened to bytes (64
bytes a tile more than in the file); the others are as large as in the file."""


@dataclass(frozen=True)
class Matrix:
    """Rows of one tensor, from its first one on, or those of the draft vocabulary."""

    tensor: str
    type: TensorType
    rows: int
    columns: int
    draft: bool = False
    """The rows are those of the draft vocabulary, gathered once at load."""

    @property
    def tile_columns(self) -> int:
        return TILE_COLUMNS[self.type]

    @property
    def tile_bytes(self) -> int:
        """Bytes of each of its tiles, a multiple of 16."""
        return TILE_BYTES[self.type]

    @property
    def column_tiles(self) -> int:
        """Tiles side by side."""
        return -(-self.columns // self.tile_columns)


@dataclass(frozen=True)
class Tile:
    """Where a tile's weights come from."""

    matrix: int
    """Which of the strip's matrices."""
    row: int
    """Its first row."""
    column: int
    """Its first column."""
    nbytes: int


@dataclass(frozen=True)
class Strip:
    """Matrices of the same shape whose groups of rows alternate: one, or gate and up. Their types may differ."""

    matrices: tuple[Matrix, ...]
    group_rows: int
    """Rows of each matrix in a group: 16, 32 or 64 (`GROUP_ROWS`)."""

    @property
    def rows(self) -> int:
        return self.matrices[0].rows

    @property
    def row_tiles(self) -> int:
        """Tiles of a matrix in a group, one below the other."""
        return self.group_rows // TILE_ROWS

    @property
    def groups(self) -> int:
        return -(-self.rows // self.group_rows)

    @cached_property
    def group(self) -> tuple[Tile, ...]:
        """The tiles of a group in the order in which they are streamed, rows counted from the group's first."""
        return tuple(
            Tile(index, row, column * matrix.tile_columns, matrix.tile_bytes)
            for index, matrix in enumerate(self.matrices)
            for column in range(matrix.column_tiles)
            for row in range(0, self.group_rows, TILE_ROWS)
        )

    @cached_property
    def _bytes_in_group(self) -> tuple[int, ...]:
        """Bytes of a group before each of its tiles, and of all of them."""
        return tuple(accumulate((tile.nbytes for tile in self.group), initial=0))

    @property
    def tiles(self) -> int:
        return self.groups * len(self.group)

    @property
    def nbytes(self) -> int:
        return self.groups * self._bytes_in_group[-1]

    def bytes_before(self, tile: int) -> int:
        """Bytes of the strip's first `tile` tiles."""
        group, rest = divmod(tile, len(self.group))
        return group * self._bytes_in_group[-1] + self._bytes_in_group[rest]

    def nearest(self, target: int) -> int:
        """How many first tiles have about `target` bytes: the border nearest to it."""
        sums = self._bytes_in_group
        group, rest = divmod(target, sums[-1])
        tile = bisect_right(sums, rest) - 1
        tile += rest - sums[tile] > sums[tile + 1] - rest
        return group * len(self.group) + tile


@dataclass(frozen=True)
class Range:
    """Items start .. stop - 1 of an instruction: the share of one SM."""

    start: int
    stop: int


@dataclass(frozen=True)
class Shared:
    """A group that several SMs compute: the first of them finishes it, adding the others' sums in their order.

    A contributor's tiles of the group are the first of its range: it has written its sums long before the finisher,
    for which they are the last ones, asks for them.
    """

    strip: int
    group: int
    finisher: int
    contributors: tuple[int, ...]


def split_evenly(items: int, sms: int) -> tuple[Range, ...]:
    """Contiguous ranges that differ by one item at most."""
    borders = [items * sm // sms for sm in range(sms + 1)]
    return tuple(Range(a, b) for a, b in pairwise(borders))


def split_by_bytes(strips: tuple[Strip, ...], sms: int) -> tuple[Range, ...]:
    """Contiguous ranges of tiles, each border the one nearest to its share of the bytes: no SM is more than a
    tile away from the mean."""
    return _split(nameless(strips), sms)


def nameless(strips: tuple[Strip, ...]) -> tuple[Strip, ...]:
    """What the layers have in common, so that it is computed once."""
    return tuple(
        Strip(tuple(Matrix("", m.type, m.rows, m.columns) for m in strip.matrices), strip.group_rows)
        for strip in strips
    )


@lru_cache(maxsize=256)
def _split(strips: tuple[Strip, ...], sms: int) -> tuple[Range, ...]:
    total = sum(strip.nbytes for strip in strips)
    borders = [0]
    for sm in range(1, sms):
        target = total * sm // sms
        tiles = 0
        for strip in strips:
            if target < strip.nbytes or strip is strips[-1]:
                tiles += strip.nearest(target)
                break
            target -= strip.nbytes
            tiles += strip.tiles
        borders.append(tiles)
    borders.append(sum(strip.tiles for strip in strips))
    return tuple(Range(a, b) for a, b in pairwise(borders))


def bytes_by_sm(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[int, ...]:
    """Bytes that each SM streams in a phase."""
    return _bytes_by_sm(nameless(strips), ranges)


@lru_cache(maxsize=256)
def _bytes_by_sm(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[int, ...]:
    return tuple(_bytes_before(strips, share.stop) - _bytes_before(strips, share.start) for share in ranges)


def _bytes_before(strips: tuple[Strip, ...], tile: int) -> int:
    """Bytes of the phase's first `tile` tiles."""
    found = 0
    for strip in strips:
        if tile <= strip.tiles:
            return found + strip.bytes_before(tile)
        found += strip.nbytes
        tile -= strip.tiles
    raise IndexError("the phase has fewer tiles")


def all_tiles(strips: tuple[Strip, ...]) -> Iterator[tuple[Matrix, Tile]]:
    """Every tile of a phase in its order."""
    for strip in strips:
        for group in range(strip.groups):
            for tile in strip.group:
                yield strip.matrices[tile.matrix], replace(tile, row=group * strip.group_rows + tile.row)


def shared_groups(strips: tuple[Strip, ...], ranges: tuple[Range, ...]) -> tuple[Shared, ...]:
    """The groups that more than one SM computes, in order: borders fall inside them."""
    first_tiles = list(accumulate((strip.tiles for strip in strips), initial=0))
    sms_of: dict[tuple[int, int], list[int]] = {}
    for sm, share in enumerate(ranges):
        if share.start < share.stop:
            for group in {_group_of(strips, first_tiles, tile) for tile in (share.start, share.stop - 1)}:
                sms_of.setdefault(group, []).append(sm)
    return tuple(
        Shared(strip, group, sms[0], tuple(sms[1:])) for (strip, group), sms in sorted(sms_of.items()) if len(sms) > 1
    )


def _group_of(strips: tuple[Strip, ...], first_tiles: list[int], tile: int) -> tuple[int, int]:
    """(strip, group) of a tile."""
    index = bisect_right(first_tiles, tile) - 1
    strip = strips[index]
    return index, (tile - first_tiles[index]) // len(strip.group)
