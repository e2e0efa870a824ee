"""Every preset has the shapes of the real size."""

from dataclasses import replace

import pytest

from server.synth.errors import UnknownPreset
from server.synth.presets import PRESETS, find_preset, scaled_down, tensor_shapes, weight_count

PUBLISHED = {
    "0.8b": (752_393_024, 772_845_888),
    "2b": (1_881_825_088, 1_942_653_248),
    "4b": (4_205_751_296, 4_326_350_848),
    "9b": (8_953_803_264, 9_197_093_888),
    "27b": (26_895_998_464, 27_320_697_856),
}
"""Weights of the trunk, and with the MTP block."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_size_has_as_many_weights_as_the_real_one(name: str) -> None:
    preset = PRESETS[name]
    assert (weight_count(replace(preset, mtp=False)), weight_count(preset)) == PUBLISHED[name]


def test_the_27b_has_851_tensors_and_866_with_its_mtp_block() -> None:
    preset = PRESETS["27b"]
    assert len(tensor_shapes(replace(preset, mtp=False))) == 851
    shapes = tensor_shapes(preset)
    assert len(shapes) == 866
    assert sum(name.startswith("blk.64.") for name in shapes) == 15
    assert shapes["blk.0.attn_qkv.weight"] == (10240, 5120)
    assert shapes["blk.3.attn_q.weight"] == (12288, 5120)
    assert shapes["blk.64.nextn.eh_proj.weight"] == (5120, 10240)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_scaled_down_model_keeps_the_ratios(preset) -> None:
    small = scaled_down(preset)
    assert small.heads / small.kv_heads == preset.heads / preset.kv_heads
    assert small.value_heads / small.key_heads == preset.value_heads / preset.key_heads
    assert small.tied == preset.tied
    assert abs(small.ffn / small.hidden - preset.ffn / preset.hidden) <= 0.25
    assert weight_count(small) < 50e6
    assert all(
        shape[-1] % 256 == 0 for name, shape in tensor_shapes(small).items() if len(shape) == 2 and "conv" not in name
    )


def test_an_unknown_preset_is_answered_with_the_list() -> None:
    with pytest.raises(UnknownPreset, match=r"'3b'; presets: tiny, 0\.8b, 2b, 4b, 9b, 27b"):
        find_preset("3b")
