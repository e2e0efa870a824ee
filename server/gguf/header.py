"""The header of a GGUF file, read strictly: every count and length is checked before anything is allocated.

The `gguf` package's own reader trusts the file: on damaged counts it raises whatever comes up, allocates
without bound or loops for minutes, and a large vocabulary takes it seconds. So only its constants are used, and
the layout (fixed little-endian fields, versions 2 and 3 of the format) is read here.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NoReturn

from gguf.constants import GGUF_DEFAULT_ALIGNMENT
from gguf.constants import GGUFValueType as ValueType

from server.gguf.errors import CorruptFile, TruncatedFile, UnreadableFile, UnsupportedTensorType
from server.gguf.types import TensorType, row_bytes

Scalar = str | int | float | bool
Value = Scalar | list[str] | list[int] | list[float] | list[bool]

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 had 32-bit lengths; no file of this family is that old
MAX_HEADER_BYTES = 1 << 28  # a vocabulary of 250,000 tokens with its merges takes 11 MB
MAX_ARRAY_LENGTH = 1 << 20
MAX_NAME_BYTES = 1 << 16
MAX_DIMENSIONS = 4

FORMATS = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in torch order: the last number counts the weights of a row."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True)
class Header:
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """Reads fields one after the other; a field that isn't wholly there ends it with a typed error."""

    def __init__(self, path: Path, data: mmap | bytes) -> None:
        self.path = path
        self.data = data
        self.limit = min(len(data), MAX_HEADER_BYTES)
        self.at = 0

    def corrupt(self, problem: str, tensor: str | None = None) -> NoReturn:
        raise CorruptFile(self.path, problem, tensor=tensor)

    def take(self, size: int, what: str) -> int:
        """Offset of the next `size` bytes, which exist."""
        start = self.at
        if size > self.limit - start:
            if self.limit < len(self.data):
                self.corrupt(f"the header runs past {MAX_HEADER_BYTES >> 20} MiB inside {what}")
            raise TruncatedFile(self.path, f"the file ends after {len(self.data)} bytes, inside {what}")
        self.at = start + size
        return start

    def number(self, format: str, what: str) -> int:
        value: int = struct.unpack_from(f"<{format}", self.data, self.take(struct.calcsize(format), what))[0]
        return value

    def name(self, what: str) -> str:
        length = self.number("Q", what)
        if not 0 < length < MAX_NAME_BYTES:
            self.corrupt(f"{what} is a name of {length} bytes")
        return self.text(length, what)

    def text(self, length: int, what: str) -> str:
        start = self.take(length, what)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.corrupt(f"{what} is not UTF-8")

    def texts(self, count: int, what: str) -> list[str]:
        """`count` strings. The one hot loop of a header (500,000 rounds for a 250,000-token vocabulary)."""
        data, limit, at, length_at = self.data, self.limit, self.at, _LENGTH.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > limit:
                    break
                found.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError:
            self.corrupt(f"entry {len(found)} of {what} is not UTF-8")
        except struct.error:  # not even a length left
            at = limit + 1
        if len(found) < count:
            self.take(at - self.at, f"entry {len(found)} of {what}")
        self.at = at
        return found


def map_file(path: Path) -> tuple[Header, mmap]:
    """The header of a file, checked against its size, and the file mapped. Needs no torch.

    Raises UnreadableFile, TruncatedFile, CorruptFile or UnsupportedTensorType.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableFile(path, "this is not a file", hint="Give the path of a .gguf model file.")
        with path.open("rb") as file:
            if not file.read(1):
                raise TruncatedFile(path, "the file is empty")
            mapping = mmap(file.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnreadableFile(path, f"it can't be opened ({reason})") from None
    return read_header(path, mapping), mapping


def read_header(path: Path, data: mmap | bytes) -> Header:
    """The header of the file `path` whose bytes are `data`.

    Every tensor lies wholly inside the file, aligned, and overlaps no other.
    Raises TruncatedFile, CorruptFile or UnsupportedTensorType.
    """
    cursor = _Cursor(path, data)
    magic = cursor.take(4, "the file's first field")
    if data[magic : magic + 4] != MAGIC:
        raise CorruptFile(path, "this is not a GGUF file", hint="Give the path of a .gguf model file.")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        problem = f"version {version} of the GGUF format is not known"
        if version & 0xFFFF == 0:
            problem = "this is a big-endian GGUF file"
        raise CorruptFile(path, problem, hint="Convert the model to GGUF again with a current converter.")
    tensor_count = cursor.number("Q", "the tensor count")
    key_count = cursor.number("Q", "the metadata count")

    metadata: dict[str, Value] = {}
    for index in range(key_count):
        key = cursor.name(f"metadata key {index} of {key_count}")
        if key in metadata:
            cursor.corrupt(f"metadata key {key} appears twice")
        metadata[key] = _read_value(cursor, key)
    return Header(metadata, _read_tensors(cursor, tensor_count, _alignment(cursor, metadata)))


def _read_value(cursor: _Cursor, key: str) -> Value:
    kind = _value_type(cursor, key)
    if kind != ValueType.ARRAY:
        return _read_scalar(cursor, kind, key)
    kind = _value_type(cursor, key)
    count = cursor.number("Q", key)
    if count > MAX_ARRAY_LENGTH:
        cursor.corrupt(f"metadata {key} claims {count} entries")
    if kind == ValueType.STRING:
        return cursor.texts(count, key)
    if kind == ValueType.BOOL:
        start = cursor.take(count, key)
        flags = cursor.data[start : start + count]
        if count and max(flags) > 1:
            cursor.corrupt(f"metadata {key} holds a truth value that is neither 0 nor 1")
        return [flag == 1 for flag in flags]
    if kind == ValueType.ARRAY:
        cursor.corrupt(f"metadata {key} is an array of arrays")
    format = FORMATS[kind]
    start = cursor.take(count * struct.calcsize(format), key)
    numbers: list[int] | list[float] = list(struct.unpack_from(f"<{count}{format}", cursor.data, start))
    return numbers


def _value_type(cursor: _Cursor, key: str) -> ValueType:
    number = cursor.number("I", key)
    try:
        return ValueType(number)
    except ValueError:
        cursor.corrupt(f"metadata {key} has the unknown value type {number}")


def _read_scalar(cursor: _Cursor, kind: ValueType, key: str) -> Scalar:
    if kind == ValueType.STRING:
        return cursor.text(cursor.number("Q", key), key)
    if kind == ValueType.BOOL:
        flag = cursor.number("B", key)
        if flag > 1:
            cursor.corrupt(f"metadata {key} is a truth value that is neither 0 nor 1")
        return flag == 1
    return cursor.number(FORMATS[kind], key)


def _alignment(cursor: _Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 8 or alignment % 8:
        cursor.corrupt(f"general.alignment is {alignment!r:.40}, not a multiple of 8")
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    listed: list[tuple[str, TensorType, tuple[int, ...], int]] = []
    for index in range(count):
        name = cursor.name(f"the name of tensor {index} of {count}")
        dimensions = cursor.number("I", f"tensor {name}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            cursor.corrupt(f"it claims {dimensions} dimensions", name)
        shape = tuple(cursor.number("Q", f"tensor {name}") for _ in range(dimensions))[::-1]
        number = cursor.number("I", f"tensor {name}")
        try:
            kind = TensorType(number)
        except ValueError:
            raise UnsupportedTensorType(
                cursor.path, f"the tensor type number {number} is not known", tensor=name
            ) from None
        listed.append((name, kind, shape, cursor.number("Q", f"tensor {name}")))

    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, kind, shape, offset in listed:
        if name in tensors:
            cursor.corrupt("it appears twice", name)
        if 0 in shape:
            cursor.corrupt(f"its shape {list(shape)} is empty", name)
        if offset % alignment:
            cursor.corrupt(f"its offset {offset} is not a multiple of {alignment}", name)
        try:
            nbytes = prod(shape[:-1]) * row_bytes(kind, shape[-1])
        except ValueError as error:
            cursor.corrupt(str(error), name)
        end = base + offset + nbytes
        if end > len(cursor.data):
            problem = f"its data ends at byte {end}, the file after {len(cursor.data)}"
            raise TruncatedFile(cursor.path, problem, tensor=name)
        tensors[name] = TensorInfo(name, kind, shape, base + offset, nbytes)
    for before, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
        if before.offset + before.nbytes > after.offset:
            cursor.corrupt(f"its data overlaps that of {before.name}", after.name)
    return tensors
