"""Portions of a share of tiles: each tile once and in its order, with what an SM has to know about it."""

from itertools import pairwise

import pytest

from server.gguf.types import TensorType
from server.kernel.portions import packed_portions, portions
from server.kernel.structs import TYPES
from server.kernel.tiles import Matrix, Range, Strip, shared_groups, split_by_bytes

GATE_UP = (
    Strip((Matrix("gate", TensorType.Q4_K, 300, 600), Matrix("up", TensorType.Q6_K, 300, 600)), 32),
    Strip((Matrix("alpha", TensorType.F32, 16, 600),), 16),
    Strip((Matrix("wide", TensorType.Q5_K, 1000, 600),), 64),
)


def described(strips: tuple[Strip, ...]) -> list[tuple[int, int, int, int]]:
    """(strip, matrix, group, tile within the matrix' part of the group) of every tile of a phase."""
    found = []
    for index, strip in enumerate(strips):
        for group in range(strip.groups):
            counts = [0, 0]
            for tile in strip.group:
                found.append((index, tile.matrix, group, counts[tile.matrix]))
                counts[tile.matrix] += 1
    return found


@pytest.mark.parametrize("sms", [1, 2, 7, 30, 132, 400])
def test_portions_are_the_tiles_of_a_share_in_their_order(sms: int) -> None:
    ranges = split_by_bytes(GATE_UP, sms)
    tiles = described(GATE_UP)
    for share, mine in zip(ranges, portions(GATE_UP, ranges), strict=True):
        found = [(p.strip, p.matrix, p.group, p.first + n) for p in mine for n in range(p.count)]
        assert found == tiles[share.start : share.stop]
        assert all((a.strip, a.matrix, a.group) != (b.strip, b.matrix, b.group) for a, b in pairwise(mine))
        at = 0
        for p in mine:
            matrix = GATE_UP[p.strip].matrices[p.matrix]
            assert (p.type, p.row_tiles) == (matrix.type, GATE_UP[p.strip].row_tiles)
            assert p.turn == at % 12
            at += p.count
            assert p.last == (share.start + at == share.stop)
            whole = tiles[share.start + at] if share.start + at < len(tiles) else (-1, 0, 0, 0)
            assert p.closes == (whole[0] != p.strip or whole[2] != p.group)
            in_order = [t for t in tiles if t[:2] == (p.strip, p.matrix)]
            assert p.offset == in_order.index((p.strip, p.matrix, p.group, p.first)) * matrix.tile_bytes


@pytest.mark.parametrize("sms", [2, 7, 30, 132, 400])
def test_who_finishes_a_group_knows_who_else_has_some_of_it(sms: int) -> None:
    ranges = split_by_bytes(GATE_UP, sms)
    lists = portions(GATE_UP, ranges)
    foreign = {(sm, p.strip, p.group) for sm, mine in enumerate(lists) for p in mine if p.foreign}
    sharers = {sm: mine[-1].sharers for sm, mine in enumerate(lists) if mine and mine[-1].sharers}
    shared = shared_groups(GATE_UP, ranges)
    assert foreign == {(sm, s.strip, s.group) for s in shared for sm in s.contributors}
    assert sharers == {s.finisher: s.contributors[-1] - s.finisher for s in shared}
    assert not any(p.sharers for mine in lists for p in mine[:-1])


def test_words_hold_what_the_device_code_reads() -> None:
    ranges = split_by_bytes(GATE_UP, 7)
    words, mine = packed_portions(GATE_UP, ranges)
    lists = portions(GATE_UP, ranges)
    assert mine[0] == Range(0, len(lists[0]))
    for share, wanted in zip(mine, lists, strict=True):
        for row, p in zip(words[share.start : share.stop].tolist(), wanted, strict=True):
            assert row[0] * 16 == p.offset
            assert row[1] == p.group
            assert (row[2] & 0xFFFF, row[2] >> 16) == (p.first, p.count)
            what = row[3]
            assert what & 7 == TYPES[p.type]
            assert (what >> 3 & 3, what >> 5 & 1, what >> 6 & 7) == (p.strip, p.matrix, p.row_tiles)
            assert [bool(what >> bit & 1) for bit in (9, 10, 11)] == [p.closes, p.foreign, p.last]
            assert (what >> 12 & 15, what >> 16) == (p.turn, p.sharers)


def test_layers_that_are_alike_share_their_words() -> None:
    def layer(n: int) -> tuple[Strip, ...]:
        return (Strip((Matrix(f"blk.{n}.down", TensorType.Q4_K, 300, 600),), 32),)

    ranges = split_by_bytes(layer(0), 7)
    assert packed_portions(layer(0), ranges)[0] is packed_portions(layer(1), ranges)[0]
