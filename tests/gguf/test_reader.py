"""Opening a model file: what it gives, and one typed error for everything that can be wrong with it."""

import os
import pickle
import struct
from pathlib import Path

import pytest
import torch

from server.gguf.errors import (
    CorruptFile,
    MissingMetadata,
    MissingTensor,
    ModelFileError,
    TruncatedFile,
    UnreadableFile,
    UnsupportedTensorType,
    WrongMetadata,
    WrongTensorShape,
)
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.gguf.writer import NewTensor, write_model_file

WEIGHTS = torch.arange(12.0).view(3, 4)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor_entry(name: str, shape: tuple[int, ...] = (8,), type: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


def header(keys: list[bytes] | None = None, tensors: list[bytes] | None = None, version: int = 3) -> bytes:
    """A header by hand, so that it can be wrong in one place; padded, with 64 bytes of data."""
    keys, tensors = keys or [], tensors or []
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return out + bytes(-len(out) % 32) + bytes(64)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.gguf"
    metadata = {"a.count": 3, "a.name": "x", "a.scale": 0.5, "a.flag": True, "a.list": [1, 2], "a.words": ["é", ""]}
    tensors = {
        "w.weight": NewTensor.quantised(WEIGHTS, TensorType.F32),
        "odd": NewTensor.stored(torch.zeros(66, dtype=torch.uint8), TensorType.TQ2_0, (256,)),
    }
    write_model_file(path, metadata, tensors)
    return path


def opened(tmp_path: Path, data: bytes) -> ModelFile:
    (tmp_path / "made.gguf").write_bytes(data)
    return ModelFile.open(tmp_path / "made.gguf")


def test_values_come_in_the_kind_asked_for(sound: Path) -> None:
    file = ModelFile.open(sound)
    assert file.value("a.count", int) == 3
    assert file.value("a.count", float) == 3.0
    assert file.value("a.flag", bool) is True
    assert file.value("absent", int, None) is None
    assert file.values("a.list", int) == [1, 2]
    assert file.values("a.list", float) == [1.0, 2.0]
    assert file.values("a.words", str) == ["é", ""]
    assert file.values("absent", str, []) == []


@pytest.mark.parametrize(
    ("key", "kind"), [("a.count", str), ("a.count", bool), ("a.flag", int), ("a.scale", int), ("a.list", int)]
)
def test_a_value_of_another_kind_is_wrong_metadata(sound: Path, key: str, kind: type) -> None:
    with pytest.raises(WrongMetadata, match=key):
        ModelFile.open(sound).value(key, kind)


def test_an_array_of_another_kind_is_wrong_metadata(sound: Path) -> None:
    with pytest.raises(WrongMetadata, match=r"a\.words"):
        ModelFile.open(sound).values("a.words", int)
    with pytest.raises(WrongMetadata, match=r"a\.count.*not an array"):
        ModelFile.open(sound).values("a.count", int)


def test_an_absent_key_is_missing_metadata(sound: Path) -> None:
    with pytest.raises(MissingMetadata, match="absent"):
        ModelFile.open(sound).value("absent", int)


def test_tensors_are_float32_of_their_own_memory(sound: Path) -> None:
    file = ModelFile.open(sound)
    tensor = file.tensor("w.weight", (3, 4))
    assert tensor.dtype == torch.float32
    tensor += 1  # a view of the mapping would end the process here
    assert torch.equal(file.tensor("w.weight"), WEIGHTS)
    assert file.raw("w.weight").shape == (3, 16)


def test_a_missing_tensor_is_named(sound: Path) -> None:
    with pytest.raises(MissingTensor) as caught:
        ModelFile.open(sound).tensor("blk.0.ffn_up.weight")
    assert caught.value.tensor == "blk.0.ffn_up.weight"


def test_a_wrong_shape_is_named_with_both_shapes(sound: Path) -> None:
    with pytest.raises(WrongTensorShape, match=r"w\.weight.*\[3, 4\].*\[4, 3\]"):
        ModelFile.open(sound).tensor("w.weight", (4, 3))


def test_an_unsupported_tensor_does_not_hinder_the_others(sound: Path) -> None:
    file = ModelFile.open(sound)
    assert file.tensor("w.weight").shape == (3, 4)
    with pytest.raises(UnsupportedTensorType, match=r"odd.*TQ2_0"):
        file.tensor("odd")


def test_every_truncation_is_a_truncated_file(sound: Path, tmp_path: Path) -> None:
    whole = sound.read_bytes()
    data_end = ModelFile.open(sound).tensors["odd"]
    for length in range(data_end.offset + data_end.nbytes):
        with pytest.raises(TruncatedFile):
            opened(tmp_path, whole[:length])


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return text("k") + struct.pack("<IIQ", 9, kind, count) + data


DAMAGED = {
    "not a GGUF file": (b"PK\3\4" + bytes(100), CorruptFile, "not a GGUF"),
    "version 1": (header(version=1), CorruptFile, "version 1"),
    "version 9": (header(version=9), CorruptFile, "version 9"),
    "big-endian": (header(version=3 << 24), CorruptFile, "big-endian"),
    "key twice": (header([text("k") + struct.pack("<II", 4, 1)] * 2), CorruptFile, "k appears twice"),
    "empty key": (header([text("") + struct.pack("<II", 4, 1)]), CorruptFile, "0 bytes"),
    "unknown value type": (header([text("k") + struct.pack("<II", 13, 1)]), CorruptFile, "type 13"),
    "key not UTF-8": (header([struct.pack("<Q", 1) + b"\xff"]), CorruptFile, "UTF-8"),
    "string not UTF-8": (header([text("k") + struct.pack("<IQ", 8, 1) + b"\xff"]), CorruptFile, "UTF-8"),
    "list entry not UTF-8": (header([array(8, 2, text("a") + struct.pack("<Q", 1) + b"\xff")]), CorruptFile, "entry 1"),
    "array of arrays": (header([array(9, 1)]), CorruptFile, "array of arrays"),
    "huge array": (header([array(4, 1 << 60)]), CorruptFile, "entries"),
    "array past the end": (header([array(4, 1000)]), TruncatedFile, "inside k"),
    "string past the end": (header([text("k") + struct.pack("<IQ", 8, 1 << 63)]), TruncatedFile, "inside k"),
    "list entry past the end": (header([array(8, 1, struct.pack("<Q", 1 << 62))]), TruncatedFile, "entry 0"),
    "truth value 2": (header([text("k") + struct.pack("<IB", 7, 2)]), CorruptFile, "truth value"),
    "truth value 2 in a list": (header([array(7, 2, b"\1\2")]), CorruptFile, "truth value"),
    "alignment 0": (header([text("general.alignment") + struct.pack("<II", 4, 0)]), CorruptFile, "alignment"),
    "alignment text": (
        header([text("general.alignment") + struct.pack("<I", 8) + text("x")]),
        CorruptFile,
        "alignment",
    ),
    "tensor twice": (header(None, [tensor_entry("t"), tensor_entry("t", offset=32)]), CorruptFile, "t.*twice"),
    "no dimension": (header(None, [tensor_entry("t", ())]), CorruptFile, "t.*0 dimensions"),
    "five dimensions": (header(None, [tensor_entry("t", (1,) * 5)]), CorruptFile, "t.*5 dimensions"),
    "empty dimension": (header(None, [tensor_entry("t", (4, 0))]), CorruptFile, "t.*empty"),
    "broken block": (header(None, [tensor_entry("t", (100,), TensorType.Q4_K)]), CorruptFile, "t.*blocks of 256"),
    "unknown tensor type": (header(None, [tensor_entry("t", type=99)]), UnsupportedTensorType, "t.*99"),
    "misaligned": (header(None, [tensor_entry("t", offset=8)]), CorruptFile, "t.*multiple of 32"),
    "overlap": (header(None, [tensor_entry("a", (16,)), tensor_entry("b", offset=32)]), CorruptFile, "b.*overlaps.*a"),
    "huge tensor": (header(None, [tensor_entry("t", ((1 << 64) - 1,) * 4)]), TruncatedFile, "t.*ends at byte"),
    "far offset": (header(None, [tensor_entry("t", offset=1 << 63)]), TruncatedFile, "t.*ends at byte"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, (1 << 64) - 1, 0), TruncatedFile, "tensor 0 of"),
    "many keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 64) - 1), TruncatedFile, "key 0 of"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_gives_one_typed_error_that_names_the_file_and_what_to_do(tmp_path: Path, case: str) -> None:
    data, error, words = DAMAGED[case]
    with pytest.raises(error, match=words) as caught:
        opened(tmp_path, data)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "made.gguf"))
    assert message.endswith(caught.value.hint)
    assert caught.value.hint.endswith(".")
    assert "\n" not in message


def test_a_header_without_damage_opens(tmp_path: Path) -> None:
    """The cases above are wrong in one place only if this is right."""
    file = opened(
        tmp_path, header([array(7, 2, b"\1\0"), text("s") + struct.pack("<I", 8) + text("é")], [tensor_entry("t")])
    )
    assert file.metadata == {"k": [True, False], "s": "é"}
    assert file.tensor("t").shape == (8,)


def test_version_2_is_read(tmp_path: Path) -> None:
    assert opened(tmp_path, header(None, [tensor_entry("t")], version=2)).tensor("t").shape == (8,)


def test_names_from_the_file_cannot_break_the_line_of_the_message(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile) as caught:
        opened(tmp_path, header(None, [tensor_entry("a\n\x1b[31mb", (4, 0))]))
    assert "a\\n\\x1b[31mb" in str(caught.value)


def test_what_is_no_file_is_unreadable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe", "bad\0name", Path("/dev/zero")):
        with pytest.raises(UnreadableFile):
            ModelFile.open(path)
    with pytest.raises(TruncatedFile, match="empty"):
        ModelFile.open(tmp_path / "empty")


def test_opening_reads_no_tensor(tmp_path: Path) -> None:
    """A file far larger than memory (sparse here) opens, and its tensors are views."""
    size = 1 << 36
    start = header(None, [tensor_entry("t", (1 << 20, size >> 20, 1), TensorType.Q8_0)])[:-64]
    with (tmp_path / "large.gguf").open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size // 32 * 34)
    raw = ModelFile.open(tmp_path / "large.gguf").raw("t")
    assert raw.shape == (size >> 20, (1 << 15) * 34)
    assert not raw[-1].any()


def test_an_error_survives_the_way_between_processes() -> None:
    error = WrongTensorShape("m.gguf", "it is wrong", tensor="t", hint="Do this.")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "m.gguf: tensor t: it is wrong. Do this."
    assert isinstance(again, ModelFileError)
