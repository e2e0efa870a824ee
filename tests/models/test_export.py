"""The model file: its metadata, the types of its tensors, its size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.export import CONTEXT_LENGTH, export, mixed_type, wide_type
from models.network import REHEARSAL, Dimensions, initial_weights
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.model.config import ModelConfig
from server.model.tokenizer import Tokenizer

DIMS = replace(REHEARSAL, vocab=512)
SHIPPED = Path(__file__).parents[2] / "models" / "draftline-python-56m.gguf"


@pytest.fixture(scope="module")
def exported(tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("export") / "model.gguf"
    export(initial_weights(DIMS, 0), tokenizer_path, path, DIMS)
    return ModelFile.open(path)


def test_the_metadata_give_the_dimensions_back(exported: ModelFile) -> None:
    config = ModelConfig.from_file(exported)
    assert (config.hidden, config.ffn, config.vocab) == (DIMS.hidden, DIMS.ffn, DIMS.vocab)
    assert [not recurrent for recurrent in config.recurrent] == [DIMS.is_attention(i) for i in range(DIMS.layers)]
    assert (config.heads, config.kv_heads, config.head_dim) == (DIMS.heads, DIMS.kv_heads, DIMS.head_dim)
    assert (config.rope_dims, config.rope_base, config.eps) == (DIMS.rotary, DIMS.rope_base, pytest.approx(DIMS.eps))
    assert (config.key_heads, config.value_heads, config.state_size) == (2, 2, 128)
    assert (config.mtp, config.tied, config.context_length) == (True, True, CONTEXT_LENGTH)
    assert sum(exported.values("qwen35.rope.dimension_sections", int)) == DIMS.rotary // 2


def test_the_metadata_name_model_licence_and_chat_template(exported: ModelFile) -> None:
    assert exported.value("general.license", str) == "apache-2.0"
    assert "56M" in exported.value("general.name", str)
    assert "<|im_start|>" in exported.value("tokenizer.chat_template", str)
    tokenizer = Tokenizer.from_file(exported)
    assert tokenizer.special("<|endoftext|>") in tokenizer.end_tokens
    assert tokenizer.decode(tokenizer.encode("x = '<think>'\n")) == "x = '<think>'\n"


def test_types_follow_the_mix(exported: ModelFile) -> None:
    types = {name: info.type for name, info in exported.tensors.items()}
    assert types["token_embd.weight"] == TensorType.Q6_K
    assert types["blk.0.ffn_up.weight"] == types["blk.4.ffn_gate.weight"] == TensorType.Q4_K
    assert types["blk.0.ffn_down.weight"] == types["blk.0.attn_qkv.weight"] == TensorType.Q5_K
    assert types["blk.4.nextn.eh_proj.weight"] == types["blk.3.attn_output.weight"] == TensorType.Q5_K
    for name in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_conv1d.weight", "ssm_a", "attn_norm.weight"):
        assert types[f"blk.0.{name}"] == TensorType.F32


def test_a_wide_file_has_only_bf16_and_f32(tokenizer_path: Path, tmp_path: Path) -> None:
    weights = initial_weights(DIMS, 0)
    export(weights, tokenizer_path, tmp_path / "wide.gguf", DIMS, wide_type)
    file = ModelFile.open(tmp_path / "wide.gguf")
    assert {info.type for info in file.tensors.values()} == {TensorType.BF16, TensorType.F32}
    name = "blk.0.attn_qkv.weight"
    assert torch.equal(file.tensor(name), weights[name].bfloat16().float())


def test_decay_rates_are_stored_negative(exported: ModelFile) -> None:
    log_a = initial_weights(DIMS, 0)["blk.0.ssm_a"]
    assert torch.allclose(exported.tensor("blk.0.ssm_a"), -log_a.exp())


def test_a_tokenizer_of_another_size_is_refused(tokenizer_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"512 tokens and the embedding 768 rows"):
        export(initial_weights(DIMS, 0), tokenizer_path, tmp_path / "m.gguf", replace(DIMS, vocab=768))
    assert not (tmp_path / "m.gguf").exists()


def test_the_shipped_file_is_of_this_shape_and_mix_and_no_larger_than_it_may_be() -> None:
    file = ModelFile.open(SHIPPED)
    expected = initial_weights(Dimensions(), 0)
    assert {name: info.shape for name, info in file.tensors.items()} == {n: tuple(w.shape) for n, w in expected.items()}
    assert {n: info.type for n, info in file.tensors.items()} == {n: mixed_type(n, w) for n, w in expected.items()}
    assert Counter(info.type for info in file.tensors.values())[TensorType.Q6_K] == 1
    assert SHIPPED.stat().st_size <= 38_000_000
    assert file.value("qwen35.context_length", int) == CONTEXT_LENGTH
