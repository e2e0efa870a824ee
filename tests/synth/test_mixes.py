"""Type mixes give the figures of published files, and what llama-quantize wrote."""

from collections import Counter

import pytest
from golden_files import FOLDER

from server.gguf.reader import ModelFile
from server.model.config import ModelConfig
from server.synth.errors import UnknownMix, WrongMix
from server.synth.mixes import MIXES, as_published, find_mix, mix_types, more_bits, tensor_bytes
from server.synth.presets import PRESETS, Preset

B27 = PRESETS["27b"]


def counts(mix: str, preset: Preset = B27) -> dict[str, int]:
    return dict(Counter(type.name for type in mix_types(MIXES[mix], preset).values()))


def test_the_published_3_6_mix_has_its_published_bytes_and_types() -> None:
    mix = MIXES["qwen3.6-27b-mtp-q4_k_m"]
    assert tensor_bytes(B27, mix_types(mix, B27)) == 17_095_778_304
    assert counts(mix.name) == {"Q4_K": 294, "Q6_K": 67, "Q5_K": 48, "Q8_0": 1, "F32": 456}


def test_the_published_3_5_mix_has_its_published_types_and_bytes() -> None:
    mix = MIXES["qwen3.5-27b-q4_k_m"]
    preset = as_published(mix, B27)
    assert not preset.mtp
    assert counts(mix.name) == {"Q4_K": 263, "Q5_K": 96, "Q8_0": 96, "Q6_K": 43, "F32": 353}
    header = 16_740_812_160 - tensor_bytes(preset, mix_types(mix, preset))
    assert 10.5e6 < header < 11.5e6  # the file's size less its tensors is a header of 11.0 MB


def test_the_stock_rule_gives_the_types_of_a_file_by_llama_quantize() -> None:
    file = ModelFile.open(FOLDER / "hybrid-b-Q4_K_M.gguf")
    c = ModelConfig.from_file(file)
    same = ("hidden", "ffn", "heads", "kv_heads", "key_heads", "value_heads", "tied", "vocab", "head_dim", "state_size")
    preset = Preset("golden", layers=c.layers, full_attention_interval=2, **{name: getattr(c, name) for name in same})
    assert mix_types(MIXES["q4_k_m"], preset) == {name: info.type for name, info in file.tensors.items()}


def test_more_bits_go_to_both_ends_and_to_every_third_block_between() -> None:
    expected = {*range(8), *range(10, 56, 3), *range(56, 65)}
    assert {i for i in range(65) if more_bits(i, 65)} == expected
    assert {i for i in range(64) if more_bits(i, 64)} == expected - {64}


def test_the_output_matrix_has_more_bits_also_when_it_is_the_embedding() -> None:
    untied, tied = (mix_types(MIXES["q4_k_m"], PRESETS[name]) for name in ("9b", "4b"))
    assert untied["token_embd.weight"].name == "Q4_K"
    assert untied["output.weight"].name == "Q6_K"
    assert tied["token_embd.weight"].name == "Q6_K"
    assert "output.weight" not in tied


@pytest.mark.parametrize(("mix", "type"), [("f16", "F16"), ("q8_0", "Q8_0")])
def test_a_plain_mix_has_one_type_for_matrices(mix: str, type: str) -> None:
    for name, found in mix_types(MIXES[mix], PRESETS["tiny"]).items():
        vector = any(part in name for part in ("norm", "conv1d", "ssm_a", "ssm_dt")) and "alpha" not in name
        assert found.name == ("F32" if vector else type), name


def test_names_that_do_not_fit_are_answered_with_those_that_do() -> None:
    with pytest.raises(UnknownMix, match=r"'q5'; mixes: f16, q8_0, q4_k_m, qwen3\.6"):
        find_mix("q5")
    with pytest.raises(WrongMix, match=r"preset 27b, not of 9b; mixes for 9b: f16, q8_0, q4_k_m$"):
        mix_types(MIXES["qwen3.5-27b-q4_k_m"], PRESETS["9b"])
