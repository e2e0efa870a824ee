"""Files we write are read back by us and by the gguf package, whole or not at all."""

import weakref

import gguf
import numpy as np
import pytest
import torch
from golden_files import FOLDER

from server.gguf.errors import CorruptFile, WrongMetadata, WrongTensorShape
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.gguf.writer import NewTensor, write_model_file

ARCHITECTURE = {"general.architecture": "qwen35"}

METADATA = {
    "qwen35.block_count": 3,
    "negative": -5,
    "large": 1 << 40,
    "epsilon": 9.999999974752427e-07,
    "flag": True,
    "text": "Grüße\n",
    "empty": "",
    "general.architecture": "qwen35",
    "tokens": ["a", "", "é", "🙂"],
    "types": [1, 3, -1],
    "wide": [1, 1 << 40],
    "floats": [0.5, -1.0],
    "flags": [True, False],
}


def test_a_golden_file_written_again_is_the_same_to_us_and_to_the_gguf_package(tmp_path) -> None:
    source = ModelFile.open(FOLDER / "hybrid-b-Q4_K_M.gguf")
    tensors = {name: NewTensor.stored(source.raw(name), info.type, info.shape) for name, info in source.tensors.items()}
    write_model_file(tmp_path / "copy.gguf", source.metadata, tensors)

    copy = ModelFile.open(tmp_path / "copy.gguf")
    assert copy.metadata == source.metadata
    assert all(torch.equal(copy.raw(name), source.raw(name)) for name in source.tensors)
    ours, theirs = gguf.GGUFReader(tmp_path / "copy.gguf"), gguf.GGUFReader(source.path)
    assert {k: (f.types, f.contents()) for k, f in ours.fields.items()} == {
        k: (f.types, f.contents()) for k, f in theirs.fields.items()
    }
    assert [(t.name, t.tensor_type, t.shape.tolist()) for t in ours.tensors] == [
        (t.name, t.tensor_type, t.shape.tolist()) for t in theirs.tensors
    ]
    assert all(np.array_equal(a.data, b.data) for a, b in zip(ours.tensors, theirs.tensors, strict=True))


def test_every_kind_of_metadata_comes_back_as_it_was(tmp_path) -> None:
    write_model_file(tmp_path / "m.gguf", METADATA, {})
    found = ModelFile.open(tmp_path / "m.gguf").metadata
    assert found == METADATA
    assert {key: type(value) for key, value in found.items()} == {k: type(v) for k, v in METADATA.items()}
    assert next(iter(found)) == "general.architecture"
    theirs = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert {key: theirs[key].contents() for key in METADATA} == METADATA
    assert theirs["qwen35.block_count"].types == [gguf.GGUFValueType.UINT32]
    assert theirs["types"].types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]


def test_tensors_are_asked_for_one_at_a_time_and_let_go_before_the_next(tmp_path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def make() -> torch.Tensor:
        assert not [1 for old in alive if old() is not None]
        data = torch.full((1 << 20,), 7, dtype=torch.uint8)
        alive.append(weakref.ref(data))
        return data

    shape = (256, 1024)
    tensors = {f"t{i}.weight": NewTensor(TensorType.F32, shape, make) for i in range(3)}
    write_model_file(tmp_path / "m.gguf", ARCHITECTURE, tensors)
    assert len(alive) == 3
    assert ModelFile.open(tmp_path / "m.gguf").raw("t2.weight").eq(7).all()


def test_quantised_tensors_keep_their_shape_and_nearly_their_weights(tmp_path) -> None:
    x = torch.randn(2, 3, 256)
    types = (TensorType.F32, TensorType.BF16, TensorType.Q8_0, TensorType.Q6_K)
    write_model_file(tmp_path / "m.gguf", ARCHITECTURE, {type.name: NewTensor.quantised(x, type) for type in types})
    file = ModelFile.open(tmp_path / "m.gguf")
    for type in types:
        assert file.tensors[type.name].type == type
        assert (file.tensor(type.name, (2, 3, 256)) - x).abs().max() < 0.1


@pytest.mark.parametrize(
    ("tensor", "error", "words"),
    [
        (NewTensor.quantised(torch.zeros(2, 100), TensorType.Q4_K), WrongTensorShape, "blocks of 256"),
        (NewTensor.quantised(torch.full((2, 256), torch.nan), TensorType.Q4_K), CorruptFile, "nan"),
        (NewTensor.stored(torch.zeros(7), TensorType.F32, (8,)), WrongTensorShape, "28 bytes instead of 32"),
        (NewTensor.stored(torch.zeros(1), TensorType.F32, (1, 1, 1, 1, 1)), WrongTensorShape, "1 to 4 axes"),
        (NewTensor.stored(torch.zeros(0), TensorType.F32, (4, 0)), WrongTensorShape, "none empty"),
    ],
)
def test_a_tensor_that_cannot_be_stored_is_named_and_leaves_no_file(tmp_path, tensor, error, words) -> None:
    with pytest.raises(error, match=words) as caught:
        write_model_file(tmp_path / "m.gguf", ARCHITECTURE, {"blk.7.x.weight": tensor})
    assert "blk.7.x.weight" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [[], [1, "a"], [True, 2], 1 << 64, None, 1e300, [[1]]])
def test_metadata_that_cannot_be_stored_is_named(tmp_path, value) -> None:
    with pytest.raises(WrongMetadata, match=r"some\.key"):
        write_model_file(tmp_path / "m.gguf", {"some.key": value}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_writing_leaves_the_older_file_alone(tmp_path) -> None:
    write_model_file(tmp_path / "m.gguf", {"version": 1}, {})
    bad = NewTensor.quantised(torch.full((2, 256), torch.inf), TensorType.F16)
    with pytest.raises(CorruptFile):
        write_model_file(tmp_path / "m.gguf", {"version": 2}, {"t": bad})
    assert ModelFile.open(tmp_path / "m.gguf").value("version", int) == 1
