"""Metadata as different converters write it, and metadata that can't be right."""

from pathlib import Path
from typing import Any

import pytest
from tiny_model import Metadata, Tensors, write_tiny_model

from server.gguf.errors import MissingMetadata, ModelFileError, WrongArchitecture, WrongMetadata
from server.gguf.reader import ModelFile
from server.model.config import ModelConfig

P = "qwen35."


def read(path: Path, changes: Metadata, drop: tuple[str, ...] = (), **dims: Any) -> ModelConfig:
    """The config of a tiny model with some metadata replaced or left out."""

    def edit(metadata: Metadata, tensors: Tensors) -> None:
        metadata.update(changes)
        for key in drop:
            metadata.pop(key)

    return ModelConfig.from_file(ModelFile.open(write_tiny_model(path / "m.gguf", edit=edit, **dims)))


def test_dimensions_as_most_files_have_them(tmp_path: Path) -> None:
    config = read(tmp_path, {})
    assert (config.hidden, config.ffn, config.vocab, config.context_length) == (64, 96, 320, 4096)
    assert (config.heads, config.kv_heads, config.head_dim, config.rope_dims) == (4, 2, 32, 8)
    assert (config.key_heads, config.value_heads, config.state_size, config.conv_kernel) == (2, 6, 16, 4)
    assert (config.rope_base, config.eps) == (1e7, pytest.approx(1e-6))
    assert (config.key_width, config.value_width, config.conv_channels) == (32, 96, 160)
    assert config.recurrent == (True, True, True, False)
    assert config.layers == 4, "the MTP block is counted in block_count but is no layer of the trunk"
    assert config.mtp
    assert config.tied


def test_an_output_matrix_of_its_own_and_no_mtp_block(tmp_path: Path) -> None:
    config = read(tmp_path, {}, mtp_layers=0, tied=False)
    assert (config.layers, config.mtp, config.tied) == (4, False, False)


@pytest.mark.parametrize(
    ("changes", "drop"),
    [
        ({P + "attention.head_count": [4] * 5, P + "attention.head_count_kv": [0, 0, 0, 2, 2]}, ()),
        ({P + "attention.head_count_kv": [0, 0, 0, 2, 2], P + "feed_forward_length": [96] * 5}, ()),
        ({P + "attention.head_count_kv": [2] * 5}, ()),
        ({P + "rope.dimension_sections": [2, 1, 1]}, ()),
        ({}, (P + "rope.dimension_sections",)),
        ({}, (P + "full_attention_interval",)),
        ({P + "attention.recurrent_layers": [True, True, True, False, False]}, (P + "full_attention_interval",)),
        ({P + "attention.recurrent_layers": [True, True, True, False, False], P + "full_attention_interval": 2}, ()),
        ({P + "ssm.v_head_reordered": True, P + "rope.mrope_interleaved": True}, ()),
        ({P + "rope.scaling.type": "none"}, ()),
        ({}, (P + "attention.value_length", P + "ssm.inner_size")),
    ],
)
def test_other_ways_to_write_the_same_dimensions(tmp_path: Path, changes: Metadata, drop: tuple[str, ...]) -> None:
    assert read(tmp_path, changes, drop) == read(tmp_path, {})


def test_recurrent_layers_win_over_the_interval(tmp_path: Path) -> None:
    flags = [False, True, False, True, False]
    assert read(tmp_path, {P + "attention.recurrent_layers": flags}).recurrent == (False, True, False, True)
    assert read(tmp_path, {P + "full_attention_interval": 2}).recurrent == (True, False, True, False)


@pytest.mark.parametrize(
    "key",
    [
        "block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
        "rope.dimension_count", "rope.freq_base", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
        "ssm.time_step_rank",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(MissingMetadata, match=P + key) as caught:
        read(tmp_path, {}, (P + key,))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 1),
        ("block_count", "many"),
        ("nextn_predict_layers", 2),
        ("embedding_length", 0),
        ("full_attention_interval", 0),
        ("attention.recurrent_layers", [True, False]),
        ("attention.head_count", [4, 4]),
        ("attention.head_count", [4, 4, 4, 4, 6]),
        ("attention.head_count_kv", [2, 2, 2, 0, 2]),
        ("attention.head_count", 3),
        ("attention.value_length", 16),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.freq_base", 0.0),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 64),
        ("rope.scaling.type", "yarn"),
        ("ssm.time_step_rank", 5),
        ("ssm.inner_size", 95),
        ("ssm.conv_kernel", 1),
        ("ssm.v_head_reordered", False),
    ],
)
def test_a_value_that_makes_no_sense_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(WrongMetadata, match=P + key):
        read(tmp_path, {P + key: value})


def test_head_counts_by_block_without_a_block_that_attends_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongMetadata, match=r"attention\.head_count"):
        read(tmp_path, {P + "attention.head_count": [4] * 4, P + "full_attention_interval": 9}, mtp_layers=0)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        metadata["general.architecture"] = "llama"

    path = write_tiny_model(tmp_path / "m.gguf", edit=edit)
    with pytest.raises(WrongArchitecture, match=r"m\.gguf: its architecture is 'llama'.*qwen35") as caught:
        ModelConfig.from_file(ModelFile.open(path))
    assert isinstance(caught.value, ModelFileError)
