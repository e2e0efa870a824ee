"""Files of the right size with the wrong bytes: what shows by itself is refused, and what real models have is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_model import Metadata, Tensors, write_tiny_model

from server.gguf.codecs import SCALES, dequantise
from server.gguf.errors import DamagedTensor, MissingTensor, WrongMetadata
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType, block_size
from server.model.check import check_model
from server.model.damage import LARGEST
from server.model.hybrid import HybridModel
from server.models_known import find_model

LARGE = {"hidden": 128, "ffn": 512, "layers": 2, "full_attention_interval": 2}
"""Its feed-forward matrices have 256 KiB each in float32, its vocabulary's matrix 160 KiB."""


def spoilt(source: Path, folder: Path, name: str, first: int, count: int | None, byte: int) -> ModelFile:
    """`source` with bytes `first` to `first + count` of the tensor `name` (None: to its end) overwritten."""
    info = ModelFile.open(source).info(name)
    data = bytearray(source.read_bytes())
    start, end = info.offset + first, info.offset + (info.nbytes if count is None else first + count)
    data[start:end] = bytes([byte]) * (end - start)
    path = folder / "spoilt.gguf"
    path.write_bytes(data)
    return ModelFile.open(path)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("large") / "m.gguf", **LARGE)


def refused(file: ModelFile, name: str, problem: str) -> None:
    with pytest.raises(DamagedTensor, match=problem) as error:
        HybridModel.load(file)
    assert (error.value.path, error.value.tensor) == (file.path, name)
    assert "Download or copy the file again" in str(error.value)


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.0.ssm_a", "blk.0.ssm_conv1d.weight", "blk.1.attn_q_norm.weight",
     "blk.1.ffn_down.weight", "blk.2.nextn.eh_proj.weight"],
)  # fmt: skip
def test_a_tensor_of_zeros_is_refused(large: Path, tmp_path: Path, name: str) -> None:
    file = spoilt(large, tmp_path, name, 0, None, 0)
    refused(file, name, "all of it is zero, as in an unfinished download")
    with pytest.raises(DamagedTensor, match=f"tensor {name}"):
        check_model(file)


@pytest.mark.parametrize(("first", "count"), [(0, 80_000), (100_000, 80_000), (180_000, None)])
def test_a_hole_in_a_matrix_is_refused(large: Path, tmp_path: Path, first: int, count: int | None) -> None:
    file = spoilt(large, tmp_path, "blk.0.ffn_up.weight", first, count, 0)
    refused(file, "blk.0.ffn_up.weight", r"\d+ of its bytes, from byte \d+ of the file, are zero")
    with pytest.raises(DamagedTensor, match=r"tensor blk\.0\.ffn_up\.weight"):
        check_model(file)


def test_a_hole_in_the_vocabulary_is_refused(large: Path, tmp_path: Path) -> None:
    refused(spoilt(large, tmp_path, "token_embd.weight", 0, 80_000, 0), "token_embd.weight", "are zero")


@pytest.mark.parametrize(("first", "count"), [(0, None), (4, 4), (252, 4)])
@pytest.mark.parametrize("name", ["blk.1.post_attention_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ssm_dt.bias"])
def test_numbers_that_are_not_finite_are_refused(
    large: Path, tmp_path: Path, name: str, first: int, count: int | None
) -> None:
    size = ModelFile.open(large).info(name).nbytes
    file = spoilt(large, tmp_path, name, min(first, size - 4), count, 0xFF)
    refused(file, name, "it holds numbers that are not finite")
    with pytest.raises(DamagedTensor, match="not finite"):
        check_model(file)


def test_weights_beyond_all_reason_are_refused(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        tensors["blk.1.attn_norm.weight"][3] = -1e30

    file = ModelFile.open(write_tiny_model(tmp_path / "m.gguf", edit=edit))
    refused(file, "blk.1.attn_norm.weight", "it holds 1e\\+30, which is no trained weight")
    with pytest.raises(DamagedTensor, match="no trained weight"):
        check_model(file)


@pytest.mark.parametrize("count", [16_384, None])
def test_a_quantised_tensor_of_ones_is_refused_by_the_check_too(tmp_path: Path, count: int | None) -> None:
    source = find_model(None)
    tensors = ModelFile.open(source).tensors
    kinds = {info.type: name for name, info in tensors.items() if info.nbytes > 20_000}
    assert len(kinds) >= 3
    for name in kinds.values():
        file = spoilt(source, tmp_path, name, 0, count, 0xFF)
        with pytest.raises(DamagedTensor, match=f"tensor {name}: it holds numbers that are not finite"):
            check_model(file)


@pytest.mark.parametrize("type", SCALES)
def test_scales_tell_of_every_type_whether_its_weights_are_finite(type: TensorType) -> None:
    size = block_size(type)[1]
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(0, 256, (2000, size), dtype=torch.uint8, generator=generator)
    raw[::7] = 0xFF
    halves = [raw[:, at : at + 2].view(torch.float16)[:, 0] for at in SCALES[type]]
    finite = torch.stack([torch.isfinite(half) for half in halves]).all(0)
    values = dequantise(raw, type)
    assert torch.equal(finite, torch.isfinite(values).all(1))
    assert not finite.all()
    assert values[finite].abs().max() < LARGEST


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_a_quantised_file_whose_rest_is_missing_is_refused(tmp_path: Path, byte: int) -> None:
    """Wherever the copy stopped; the embedded model has several quantised types."""
    source = find_model(None)
    data = source.read_bytes()
    tensors = list(ModelFile.open(source).tensors.values())
    path = tmp_path / "m.gguf"
    for stop in (tensors[0].offset, tensors[0].offset + 5_000_000, len(data) // 2, len(data) - 70_000):
        path.write_bytes(data[:stop] + bytes([byte]) * (len(data) - stop))
        with pytest.raises(DamagedTensor):
            HybridModel.load(ModelFile.open(path))


def test_what_trained_models_have_is_no_damage(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        kinds = metadata["tokenizer.ggml.token_type"]
        assert sum(kind != 1 for kind in kinds) * 512 > 80_000
        for token, kind in enumerate(kinds):
            if kind != 1:
                tensors["token_embd.weight"][token] = 0  # rows that no text uses
        tensors["token_embd.weight"][40] = 0  # a token that training never saw
        tensors["blk.0.ffn_up.weight"][100:120] = 0  # units that died
        tensors["blk.0.attn_norm.weight"][:60] = 0
        tensors["blk.0.ssm_dt.bias"][:] = 0

    file = ModelFile.open(write_tiny_model(tmp_path / "m.gguf", **LARGE, vocab=512, edit=edit))
    HybridModel.load(file)
    assert check_model(file)


def test_the_check_finds_what_loading_would_without_reading_weights(tmp_path: Path) -> None:
    def faulty(edit: Callable[[Metadata, Tensors], None]) -> ModelFile:
        return ModelFile.open(write_tiny_model(tmp_path / "m.gguf", edit=edit))

    def unknown_type(metadata: Metadata, tensors: Tensors) -> None:
        metadata["tokenizer.ggml.token_type"][5] = 76

    def renamed(metadata: Metadata, tensors: Tensors) -> None:
        tensors["blk.0.ffn_uq.weight"] = tensors.pop("blk.0.ffn_up.weight")

    assert check_model(faulty(lambda metadata, tensors: None))
    with pytest.raises(WrongMetadata, match="tokens of the unknown type 76"):
        check_model(faulty(unknown_type))
    with pytest.raises(MissingTensor, match=r"tensor blk\.0\.ffn_up\.weight: it is missing"):
        check_model(faulty(renamed))
