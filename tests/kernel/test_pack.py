"""Tiles hold what the file's rows hold, to the bit, where the container's description says, and zeros elsewhere."""

import pytest
import torch
from small_models import SMS, MakeSmall

from server.gguf.codecs import dequantise
from server.gguf.types import TensorType, row_bytes
from server.kernel import pack as packing
from server.kernel.arithmetic import Arithmetic
from server.kernel.memory import memory_plan
from server.kernel.pack import PACKERS, pack, packed_weights, unpack
from server.kernel.plan import build_plan
from server.kernel.tiles import TILE_BYTES, TILE_COLUMNS
from server.kernel.weights import Weights

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


@pytest.mark.parametrize("type", PACKERS, ids=lambda type: type.name)
def test_codes_and_scales_of_padding_are_zeros(type: TensorType) -> None:
    below = pack(random_rows(type, 16, 256), type, 32)[0, :, 1]
    if type == TensorType.Q6_K:
        assert (below[:, 3072:3328] == 128).all()  # these scales are stored with 128 added
        below = torch.cat((below[:, :3072], below[:, 3328:]), 1)
    assert not below.any()


def test_a_chunk_of_rows_after_the_other_gives_the_same_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(TensorType.Q6_K, 203, 512)
    whole = pack(raw, TensorType.Q6_K, 32)
    monkeypatch.setattr(packing, "CPU_CHUNK", 3 * 32 * 420)
    assert torch.equal(pack(raw, TensorType.Q6_K, 32), whole)


def test_rows_that_do_not_lie_at_whole_words_are_packed_too() -> None:
    raw = random_rows(TensorType.Q4_K, 20, 256)
    shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), raw.flatten()))[1:].view_as(raw)
    assert torch.equal(pack(shifted, TensorType.Q4_K, 16), pack(raw, TensorType.Q4_K, 16))


def test_rows_of_broken_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="Q6_K blocks of 210 bytes"):
        pack(torch.zeros(2, 209, dtype=torch.uint8), TensorType.Q6_K, 16)


@pytest.mark.parametrize("size", ["27b", "0.8b"])
def test_all_matrices_of_a_model_are_packed_as_its_plans_stream_them(make_small: MakeSmall, size: str) -> None:
    small = make_small(size, Arithmetic())
    ids = list(range(3, 3 + 2 * small.model.draft_rows, 2))
    weights = Weights(small.file, small.model, torch.float32, draft_ids=ids)
    packed = packed_weights(small.file, small.model, ids)
    assert sum(tiles.numel() for tiles in packed.values()) == memory_plan(small.model, SMS, 64).weights
    streamed = set()
    for drafts in (0, 1, 3):
        for strip in {
            strip for phase in build_plan(small.model, SMS, 4, drafts).weight_phases for strip in phase.strips
        }:
            for m in strip.matrices:
                tiles = packed[m.tensor, m.draft]
                assert tiles.shape == (strip.groups, m.column_tiles, strip.row_tiles, m.tile_bytes)
                expected = weights.matrix(m.tensor, m.draft)
                assert same_bits(unpack(tiles, m.type, m.rows, m.columns), expected)
                streamed.add((m.tensor, m.draft))
    assert streamed == packed.keys()


def test_a_wrong_number_of_draft_ids_is_refused(make_small: MakeSmall) -> None:
    small = make_small("27b", Arithmetic())
    with pytest.raises(ValueError, match="3 ids for a draft head of 250 rows"):
        packed_weights(small.file, small.model, [1, 2, 3])
