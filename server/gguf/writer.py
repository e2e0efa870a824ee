"""Writes a GGUF file (version 3), tensor after tensor, so that no more than one of them is ever in memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from gguf.constants import GGUF_DEFAULT_ALIGNMENT
from gguf.constants import GGUFValueType as ValueType
from torch import Tensor

from server.gguf.errors import CorruptFile, WrongMetadata, WrongTensorShape
from server.gguf.header import FORMATS, MAGIC, MAX_ARRAY_LENGTH, MAX_DIMENSIONS, Scalar
from server.gguf.quantise import QuantisationError, quantise
from server.gguf.types import TensorType, row_bytes

MetadataValue = Scalar | Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool]

VERSION = 3
MAX_NAME_BYTES = 63  # what other readers of the format allow a tensor's name


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written. `data` is asked for when its turn comes: uint8, its stored bytes in any shape.

    `shape` is in torch order.
    """

    type: TensorType
    shape: tuple[int, ...]
    data: Callable[[], Tensor]

    @classmethod
    def quantised(cls, x: Tensor, type: TensorType) -> NewTensor:
        """The float tensor `x`, quantised to `type` when it is written (rows run along the last axis)."""
        return cls(type, tuple(x.shape), lambda: quantise(x.detach().reshape(-1, x.shape[-1]), type))

    @classmethod
    def stored(cls, raw: Tensor, type: TensorType, shape: Sequence[int]) -> NewTensor:
        """A tensor whose bytes are there already, as `ModelFile.raw` gives them."""
        return cls(type, tuple(shape), lambda: raw)


def write_model_file(
    path: Path | str,
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, NewTensor],
    *,
    durable: bool = True,
) -> None:
    """Write the file at once or not at all: into a neighbour that then takes the name `path`.

    `durable` waits until the disk has everything, so that not even a power failure leaves half a file; files that
    can be made again needn't wait.

    Integers are stored as uint32 where they fit (otherwise int32, uint64, int64), those of an array as int32 where
    they fit, floats as float32: what readers of the family expect. `general.architecture` comes first.
    Raises WrongMetadata, WrongTensorShape, CorruptFile (weights that the type can't hold)
    and OSError.
    """
    path = Path(path)
    header, places = _header(path, metadata, tensors)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(header)
            for name, tensor in tensors.items():
                start, nbytes = places[name]
                file.write(bytes(start - file.tell()))
                _write_tensor(path, file, name, tensor, nbytes)
            file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _write_tensor(path: Path, file: BinaryIO, name: str, tensor: NewTensor, nbytes: int) -> None:
    try:
        data = tensor.data().cpu().contiguous()
    except QuantisationError as error:
        hint = "Look for the step that made these weights, or choose another type."
        raise CorruptFile(path, str(error), tensor=name, hint=hint) from None
    if data.nbytes != nbytes:
        raise WrongTensorShape(path, f"its data has {data.nbytes} bytes instead of {nbytes}", tensor=name)
    file.write(data.view(-1).numpy().data)


def _header(
    path: Path, metadata: Mapping[str, MetadataValue], tensors: Mapping[str, NewTensor]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header with its padding, and where each tensor's bytes lie in the file: name -> (offset, bytes)."""
    out = bytearray(MAGIC)
    out += struct.pack("<IQQ", VERSION, len(tensors), len(metadata))
    for key in sorted(metadata, key=lambda key: key != "general.architecture"):  # the sort keeps the order
        out += _text(key)
        try:
            out += _value(metadata[key])
        except (ValueError, TypeError) as error:
            hint = "Give text, a number, a truth value or a list of one of them."
            raise WrongMetadata(path, f"{key} can't be stored ({error})", hint=hint) from None

    relative: dict[str, tuple[int, int]] = {}
    at = 0
    for name, tensor in tensors.items():
        nbytes = _nbytes(path, name, tensor)
        out += _text(name)
        out += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        out += struct.pack("<IQ", tensor.type, at)
        relative[name] = (at, nbytes)
        at += nbytes + -nbytes % GGUF_DEFAULT_ALIGNMENT
    out += bytes(-len(out) % GGUF_DEFAULT_ALIGNMENT)
    return bytes(out), {name: (len(out) + offset, nbytes) for name, (offset, nbytes) in relative.items()}


def _nbytes(path: Path, name: str, tensor: NewTensor) -> int:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        problem = f"a tensor's name has 1 to {MAX_NAME_BYTES} bytes"
        raise WrongMetadata(path, problem, tensor=name, hint="Choose another name.")
    if not 1 <= len(tensor.shape) <= MAX_DIMENSIONS or 0 in tensor.shape:
        problem = f"the shape {list(tensor.shape)} can't be stored"
        raise WrongTensorShape(path, problem, tensor=name, hint="Give it 1 to 4 axes, none empty.")
    try:
        return prod(tensor.shape[:-1]) * row_bytes(tensor.type, tensor.shape[-1])
    except ValueError as error:
        raise WrongTensorShape(path, str(error), tensor=name, hint="Store it as F16 or F32.") from None


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: MetadataValue) -> bytes:
    """A value with its type number before it."""
    if isinstance(value, str | bool | int | float):
        kind = _kind([value], ValueType.UINT32)
        return struct.pack("<I", kind) + _items([value], kind)
    if not value or len(value) > MAX_ARRAY_LENGTH:
        raise ValueError(f"an array has 1 to {MAX_ARRAY_LENGTH} entries")
    kind = _kind(value, ValueType.INT32)
    return struct.pack("<IIQ", ValueType.ARRAY, kind, len(value)) + _items(value, kind)


def _kind(values: Sequence[Scalar], integer: ValueType) -> ValueType:
    """The type that holds all `values`; `integer` is the first choice for integers."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return ValueType.STRING
    if kinds == {bool}:
        return ValueType.BOOL
    if kinds == {float} or kinds == {float, int}:
        return ValueType.FLOAT32
    if kinds != {int}:
        raise TypeError(f"not one kind: {', '.join(sorted(kind.__name__ for kind in kinds))}")
    for kind in (integer, ValueType.INT32, ValueType.UINT32, ValueType.UINT64, ValueType.INT64):
        size = struct.calcsize(FORMATS[kind]) * 8
        low, high = (0, 1 << size) if FORMATS[kind].isupper() else (-1 << size - 1, 1 << size - 1)
        if all(low <= int(value) < high for value in values):
            return kind
    raise ValueError("an integer of more than 64 bits")


def _items(values: Sequence[Scalar], kind: ValueType) -> bytes:
    if kind == ValueType.STRING:
        return b"".join(_text(str(value)) for value in values)
    try:
        return struct.pack(f"<{len(values)}{'?' if kind == ValueType.BOOL else FORMATS[kind]}", *values)
    except (struct.error, OverflowError) as error:
        raise ValueError(str(error)) from None
