"""Tiles hold what the file's rows hold, to the bit, where the container's description says, and zeros elsewhere."""

import pytest
import torch

from server.gguf.codecs import dequantise
from server.gguf.types import TensorType, row_bytes
from server.kernel.pack import PACKERS, pack, unpack
from server.kernel.tiles import TILE_BYTES, TILE_COLUMNS

WHOLE = [TensorType.Q4_K, TensorType.Q5_K, TensorType.Q6_K]


def random_rows(type: TensorType, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Random bytes: every code and scale, with infinities and NaNs among the scales."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, row_bytes(type, columns)), dtype=torch.uint8, generator=generator)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    both_nan = ours.isnan() & theirs.isnan()
    same = (ours.view(torch.int32) == theirs.view(torch.int32)) | both_nan
    return ours.shape == theirs.shape and bool(same.all())


def shapes(type: TensorType) -> list[tuple[int, int]]:
    ragged = [] if type in WHOLE else [(1, 32), (33, 96), (70, 1056), (17, 320)]
    return [(16, 256), (128, 512), (1, 256), (77, 768), *ragged]


@pytest.mark.parametrize("group_rows", [16, 32, 64])
@pytest.mark.parametrize("type", PACKERS, ids=lambda type: type.name)
def test_tiles_hold_the_bits_of_the_rows(type: TensorType, group_rows: int) -> None:
    for rows, columns in shapes(type):
        raw = random_rows(type, rows, columns)
        tiles = pack(raw, type, group_rows)
        across = -(-columns // TILE_COLUMNS[type])
        assert tiles.shape == (-(-rows // group_rows), across, group_rows // 16, TILE_BYTES[type])
        assert same_bits(unpack(tiles, type, rows, columns), dequantise(raw, type))
        padded = unpack(tiles, type, tiles.shape[0] * group_rows, across * TILE_COLUMNS[type])
        assert not padded[rows:].any()
        assert not padded[:, columns:].any()
