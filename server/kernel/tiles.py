"""Weights as tiles of 16 rows, their linear order within a phase, and the split of that order over the SMs by bytes.

A phase streams one or several matrices that have the same input. Its order is fixed: strip after strip, group after
group, in a group one block of 256 columns after the other, in a block first matrix by matrix, then row tile by row
tile. A group is what one SM finishes: the rows whose outputs are scaled, combined and handed on together. An SM owns
one contiguous range, so it continues at most one group, with its first tiles; the SM that begins a group finishes it.
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
BLOCK_COLUMNS = 256
"""Columns whose activations are used together."""
TILE_COLUMNS = {TensorType.F32: 64, TensorType.F16: 128, TensorType.BF16: 128}
"""Columns of a tile where they are fewer than BLOCK_COLUMNS: wide types would make tiles too large to balance."""
TILE_BYTES = {
    TensorType.F32: 4096,
    TensorType.F16: 4096,
    TensorType.BF16: 4096,
    TensorType.Q8_0: 4352,
    TensorType.Q4_K: 2368,
    TensorType.Q5_K: 2880,
    TensorType.Q6_K: 3360,
}
"""Bytes of a whole tile as it lies in device memory. K-quants of 4 and 5 bits have their 6-bit scales and minima
widened to bytes (64 bytes a tile more than in the file); the others are as in the file."""


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
        return TILE_COLUMNS.get(self.type, BLOCK_COLUMNS)

    def tile_bytes(self, columns: int) -> int:
        """Bytes of a tile of so many columns; a multiple of 16."""
        return -(-TILE_BYTES[self.type] * columns // (self.tile_columns * 16)) * 16


@dataclass(frozen=True)
class Tile:
    """Where a tile's weights come from: 16 rows (fewer at a matrix' end) by `columns` columns."""

    matrix: int
    """Which of the strip's matrices."""
    row: int
    """Its first row."""
    column: int
    columns: int
    nbytes: int


@dataclass(frozen=True)
class Strip:
    """Matrices of the same shape whose rows alternate: one, or gate and up."""

    matrices: tuple[Matrix, ...]
    group_rows: int
    """Rows of each matrix in a group: 16 or 32."""

    @property
    def rows(self) -> int:
        return self.matrices[0].rows

    @cached_property
    def groups(self) -> int:
        return -(-self.rows // self.group_rows)

    def group(self, index: int) -> tuple[Tile, ...]:
        """The tiles of a group in the order in which they are streamed, rows counted from the group's first."""
        return (self._last if index == self.groups - 1 else self._whole)[0]

    @cached_property
    def _whole(self) -> tuple[tuple[Tile, ...], tuple[int, ...]]:
        return _group_tiles(self._shapes, self.group_rows)

    @cached_property
    def _last(self) -> tuple[tuple[Tile, ...], tuple[int, ...]]:
        return _group_tiles(self._shapes, self.rows - (self.groups - 1) * self.group_rows)

    @property
    def _shapes(self) -> tuple[Matrix, ...]:
        return tuple(Matrix("", m.type, 0, m.columns) for m in self.matrices)

    @cached_property
    def tiles(self) -> int:
        return (self.groups - 1) * len(self._whole[0]) + len(self._last[0])

    @cached_property
    def nbytes(self) -> int:
        return (self.groups - 1) * self._whole[1][-1] + self._last[1][-1]

    def bytes_before(self, tile: int) -> int:
        """Bytes of the strip's first `tile` tiles."""
        group = min(tile // len(self._whole[0]), self.groups - 1)
        return group * self._whole[1][-1] + self._sums(group)[tile - group * len(self._whole[0])]

    def nearest(self, target: int) -> int:
        """How many first tiles have about `target` bytes: the border nearest to it."""
        group = min(target // self._whole[1][-1], self.groups - 1)
        sums = self._sums(group)
        rest = target - group * self._whole[1][-1]
        tile = min(bisect_right(sums, rest) - 1, len(sums) - 2)
        tile += rest - sums[tile] > sums[tile + 1] - rest
        return group * len(self._whole[0]) + tile

    def _sums(self, group: int) -> tuple[int, ...]:
        return (self._last if group == self.groups - 1 else self._whole)[1]


@lru_cache(maxsize=1024)
def _group_tiles(matrices: tuple[Matrix, ...], rows: int) -> tuple[tuple[Tile, ...], tuple[int, ...]]:
    """The tiles of a group of so many rows, and the bytes before each of them and of all."""
    tiles = []
    for block in range(0, matrices[0].columns, BLOCK_COLUMNS):
        for index, matrix in enumerate(matrices):
            end = min(block + BLOCK_COLUMNS, matrix.columns)
            for row in range(0, rows, TILE_ROWS):
                for column in range(block, end, matrix.tile_columns):
                    columns = min(matrix.tile_columns, end - column)
                    tiles.append(Tile(index, row, column, columns, matrix.tile_bytes(columns)))
    return tuple(tiles), tuple(accumulate((tile.nbytes for tile in tiles), initial=0))


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
    return _split(_nameless_strips(strips), sms)


def _nameless_strips(strips: tuple[Strip, ...]) -> tuple[Strip, ...]:
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
    return _bytes_by_sm(_nameless_strips(strips), ranges)


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
            for tile in strip.group(group):
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
    return index, min((tile - first_tiles[index]) // len(strip.group(0)), strip.groups - 1)
