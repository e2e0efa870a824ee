"""Tensors as different converters name them, fallbacks for optional ones, and files that lack something."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from state_checks import tokens
from tiny_model import Metadata, Tensors, write_tiny_model

from server.gguf.errors import MissingTensor, WrongTensorShape
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.linear import can_halve

IDS = tokens(20, 250)
MTP = "blk.4.nextn."


def outputs(path: Path, edit: Any = None, **dims: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the trunk and of a draft, for a tiny model whose file was edited."""
    model = HybridModel.load(ModelFile.open(write_tiny_model(path / "m.gguf", edit=edit, **dims)))
    state = model.new_state()
    hidden = model.prefill(IDS, state)
    return model.logits(hidden), model.draft_logits(model.mtp_rows([3], state.last_hidden[None], state))


def same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> list[bool]:
    return [torch.equal(x, y) for x, y in zip(a, b, strict=True)]


def test_the_time_bias_may_lack_its_suffix(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("ssm_dt.bias")]:
            tensors[name.removesuffix(".bias")] = tensors.pop(name)

    assert same(outputs(tmp_path, edit), outputs(tmp_path)) == [True, True]


def test_without_an_output_matrix_the_embedding_is_used(tmp_path: Path) -> None:
    def copy(metadata: Metadata, tensors: Tensors) -> None:
        tensors["output.weight"] = tensors["token_embd.weight"]

    def other(metadata: Metadata, tensors: Tensors) -> None:
        tensors["output.weight"] = tensors["token_embd.weight"][::-1]

    assert same(outputs(tmp_path, copy), outputs(tmp_path)) == [True, True]
    assert same(outputs(tmp_path, other), outputs(tmp_path)) == [False, False]


@pytest.mark.parametrize(
    ("own", "trunk"),
    [("embed_tokens", "token_embd"), ("shared_head_head", "output"), ("shared_head_norm", "output_norm")],
)
def test_the_mtp_block_may_have_tensors_of_its_own_or_use_those_of_the_trunk(
    tmp_path: Path, own: str, trunk: str
) -> None:
    def without(metadata: Metadata, tensors: Tensors) -> None:
        tensors.pop(f"{MTP}{own}.weight", None)

    def copy(metadata: Metadata, tensors: Tensors) -> None:
        tensors[f"{MTP}{own}.weight"] = tensors[f"{trunk}.weight"]

    def other(metadata: Metadata, tensors: Tensors) -> None:
        tensors[f"{MTP}{own}.weight"] = np.flip(tensors[f"{trunk}.weight"], 0)

    fallback = outputs(tmp_path, without, tied=False)
    assert same(outputs(tmp_path, copy, tied=False), fallback) == [True, True]
    assert same(outputs(tmp_path, other, tied=False), fallback) == [True, False]


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_qkv.weight",
        "blk.0.ssm_a", "blk.2.ssm_dt.bias", "blk.3.attn_q.weight", "blk.3.post_attention_norm.weight",
        "blk.0.ffn_down.weight", "blk.4.attn_k.weight", f"{MTP}eh_proj.weight",
    ],
)  # fmt: skip
def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path, name: str) -> None:
    def drop(metadata: Metadata, tensors: Tensors) -> None:
        del tensors[name]

    def cut(metadata: Metadata, tensors: Tensors) -> None:
        tensors[name] = tensors[name][..., :-1]

    with pytest.raises(MissingTensor) as missing:
        outputs(tmp_path, drop)
    assert missing.value.tensor == name
    with pytest.raises(WrongTensorShape) as misshapen:
        outputs(tmp_path, cut)
    assert misshapen.value.tensor == name


def test_a_file_with_the_draft_block_alone_is_refused(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("blk.") and not name.startswith("blk.4.")]:
            del tensors[name]

    with pytest.raises(MissingTensor, match=r"tensor blk\.0\.attn_norm\.weight: it is missing.*draft-only"):
        outputs(tmp_path, edit)


def test_half_weights_are_close_and_refused_where_they_cant_be(tmp_path: Path) -> None:
    file = ModelFile.open(write_tiny_model(tmp_path / "m.gguf"))
    if not can_halve("cpu", torch.float32):
        pytest.skip("no float16 weights on this processor")
    exact, half = HybridModel.load(file), HybridModel.load(file, half_weights=True)
    logits = [m.logits(m.prefill(IDS, m.new_state())) for m in (exact, half)]
    gap = (logits[0] - logits[1]).abs()
    assert 0 < gap.mean() < 0.01, "rounding to 11 bits shows, and no more than that"
    with pytest.raises(ValueError, match=r"float16 weights under torch\.float64 on cpu"):
        HybridModel.load(file, dtype=torch.float64, half_weights=True)
