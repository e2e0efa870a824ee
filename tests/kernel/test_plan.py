"""The plan's figures for the 27B model, and its tiles: every weight in exactly one of them."""

from collections import Counter

import pytest

from server.gguf.types import TensorType
from server.kernel.check import check
from server.kernel.errors import UnsupportedByKernel
from server.kernel.instructions import chunk_positions
from server.kernel.model import KernelModel, preset_model
from server.kernel.plan import build_plan
from server.kernel.tiles import Matrix, Strip, all_tiles, bytes_by_sm, shared_groups, split_by_bytes
from server.synth.mixes import find_mix
from server.synth.presets import PRESETS, find_preset

SMS = 132


def preset(name: str, mix: str, draft_rows: int | None = 32_768) -> KernelModel:
    return preset_model(find_preset(name), find_mix(mix), draft_rows)


@pytest.mark.parametrize("mix", ["q4_k_m", "qwen3.6-27b-mtp-q4_k_m", "qwen3.5-27b-q4_k_m"])
def test_27b_streams_evenly_on_132_sms_and_no_group_is_spread_over_more_than_two(mix: str) -> None:
    model = preset("27b", mix)
    assert check(build_plan(model, SMS, 5, 4 if model.config.mtp else 0), spread=0.02, sharers=2) == []


@pytest.mark.parametrize("mix", ["q4_k_m", "q8_0", "f16"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_size_streams_evenly_to_a_tile(name: str, mix: str) -> None:
    model = preset(name, mix, 1000)
    for sms, rows, drafts in ((SMS, 16, 2), (7, 1, 0)):
        assert check(build_plan(model, sms, rows, drafts)) == []


def test_27b_streams_its_file_once_and_the_mtp_block_once_a_step() -> None:
    model = preset("27b", "qwen3.6-27b-mtp-q4_k_m")
    plan = build_plan(model, SMS, 5, 4)
    c = model.config
    matrices = {name: model.file_bytes(name) for name in model.matrices() if name != "token_embd.weight"}
    block = {name: nbytes for name, nbytes in matrices.items() if name.startswith(f"blk.{c.layers}.")}
    trunk = sum(matrices.values()) - sum(block.values())
    assert sum(i.cost.weights for i in plan.trunk) == trunk
    step = sum(block.values()) + model.file_bytes(model.output, 32_768)
    assert sum(i.cost.weights for i in plan.draft) == 4 * step
    vectors = 4 * sum(model.vectors().values())
    assert trunk + sum(block.values()) + vectors + model.file_bytes("token_embd.weight") == 17_095_778_304


def test_27b_reads_and_writes_each_memory_once_a_cycle() -> None:
    plan = build_plan(preset("27b", "q4_k_m"), SMS, 1, 0)
    memories = 48 * 48 * 128 * 128 * 4
    state = sum(i.cost.state for i in plan.trunk)
    assert 2 * memories <= state <= 2 * memories * 1.06
    assert sum(i.cost.per_position for i in plan.trunk) == 65_536


@pytest.mark.parametrize("rows", range(1, 17))
def test_what_an_sm_does_does_not_depend_on_the_number_of_rows(rows: int) -> None:
    """Otherwise a row's sums would."""
    model = preset("tiny", "q4_k_m")
    one, other = build_plan(model, SMS, 1, 0), build_plan(model, SMS, rows, 0)
    assert [(i.name, i.ranges) for i in one.instructions] == [(i.name, i.ranges) for i in other.instructions]


STRIPS = {
    "mixed types": (
        Strip((Matrix("a", TensorType.Q4_K, 80, 512),), 64),
        Strip((Matrix("b", TensorType.F32, 22, 512),), 64),
        Strip((Matrix("c", TensorType.Q6_K, 48, 512),), 16),
    ),
    "gate and up": (Strip((Matrix("g", TensorType.Q4_K, 336, 512), Matrix("u", TensorType.F16, 336, 512)), 32),),
    "ragged": (Strip((Matrix("a", TensorType.Q8_0, 40, 96),), 32), Strip((Matrix("b", TensorType.F16, 7, 1100),), 16)),
    "one tile": (Strip((Matrix("a", TensorType.BF16, 3, 64),), 32),),
}


@pytest.mark.parametrize("strips", STRIPS.values(), ids=STRIPS)
@pytest.mark.parametrize("sms", [1, 3, 16, 132])
def test_tiles_hold_every_weight_once_and_are_split_by_bytes(strips: tuple[Strip, ...], sms: int) -> None:
    tiles = list(all_tiles(strips))
    held = Counter(
        (matrix.tensor, row, column)
        for matrix, tile in tiles
        for row in range(tile.row, min(tile.row + 16, matrix.rows))
        for column in range(tile.column, min(tile.column + matrix.tile_columns, matrix.columns))
    )
    matrices = [matrix for strip in strips for matrix in strip.matrices]
    assert set(held.values()) == {1}
    assert len(held) == sum(matrix.rows * matrix.columns for matrix in matrices)
    ranges = split_by_bytes(strips, sms)
    sizes = [tile.nbytes for _, tile in tiles]
    assert list(bytes_by_sm(strips, ranges)) == [sum(sizes[share.start : share.stop]) for share in ranges]
    assert max(abs(n - sum(sizes) / sms) for n in bytes_by_sm(strips, ranges)) <= max(sizes)


@pytest.mark.parametrize("strips", STRIPS.values(), ids=STRIPS)
def test_shared_groups_are_those_with_a_border_inside_and_their_first_sm_finishes_them(
    strips: tuple[Strip, ...],
) -> None:
    ranges = split_by_bytes(strips, 16)
    owners: dict[tuple[int, int], list[int]] = {}
    at = 0
    for s, strip in enumerate(strips):
        for group in range(strip.groups):
            for _ in strip.group:
                sm = next(i for i, share in enumerate(ranges) if share.start <= at < share.stop)
                if sm not in owners.setdefault((s, group), []):
                    owners[s, group].append(sm)
                at += 1
    expected = {group: sms for group, sms in owners.items() if len(sms) > 1}
    found = shared_groups(strips, ranges)
    assert {(x.strip, x.group): [x.finisher, *x.contributors] for x in found} == expected


def test_a_context_is_cut_into_few_whole_parts_by_position_alone() -> None:
    for position in (0, 1, 63, 64, 2111, 2112, 4096, 30_000, 99_999, 262_143):
        chunk = chunk_positions(position, 33)
        assert chunk % 64 == 0
        assert -(-(position + 1) // chunk) <= 33


def test_a_type_or_shape_that_the_kernel_does_not_read_is_named() -> None:
    model = preset("tiny", "q4_k_m")
    types = {**model.types, "blk.1.ffn_up.weight": TensorType.Q3_K}
    with pytest.raises(UnsupportedByKernel, match=r"blk\.1\.ffn_up\.weight is Q3_K"):
        KernelModel.of(model.config, types)
    types.pop("blk.1.ffn_up.weight")
    with pytest.raises(UnsupportedByKernel, match=r"blk\.1\.ffn_up\.weight is missing"):
        KernelModel.of(model.config, types)


def test_rows_and_drafts_out_of_bounds_are_refused() -> None:
    model = preset("tiny", "q4_k_m")
    for rows, drafts in ((0, 0), (17, 0), (1, 8), (1, -1)):
        with pytest.raises(ValueError, match="a launch"):
            build_plan(model, SMS, rows, drafts)
