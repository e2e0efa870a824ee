"""A model file opened for reading: typed metadata, and tensors dequantised from a memory mapping."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Final, TypeVar, overload

import torch

from server.gguf.codecs import CODECS, dequantise
from server.gguf.errors import (
    MissingMetadata,
    MissingTensor,
    UnsupportedTensorType,
    WrongMetadata,
    WrongTensorShape,
)
from server.gguf.header import Header, TensorInfo, Value, map_file

K = TypeVar("K", str, int, float, bool)
D = TypeVar("D")


class _Required:
    """The default of a metadata value that must be there."""


REQUIRED: Final = _Required()


class ModelFile:
    """A GGUF file. Opening reads the header only; the tensors stay in the mapping until asked for.

    `metadata` maps keys to str, int, float, bool or a list of one of them, `tensors` names to TensorInfo.
    """

    def __init__(self, path: Path, header: Header, data: torch.Tensor) -> None:
        self.path = path
        self.metadata: dict[str, Value] = header.metadata
        self.tensors: dict[str, TensorInfo] = header.tensors
        self._data = data

    @classmethod
    def open(cls, path: Path | str) -> ModelFile:
        """Map the file and check its header against its size.

        Raises UnreadableFile, TruncatedFile, CorruptFile or UnsupportedTensorType.
        """
        path = Path(path)
        header, mapping = map_file(path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            data = torch.frombuffer(mapping, dtype=torch.uint8)
        return cls(path, header, data)

    @overload
    def value(self, key: str, kind: type[K]) -> K: ...
    @overload
    def value(self, key: str, kind: type[K], default: D) -> K | D: ...
    def value(self, key: str, kind: type[K], default: D | _Required = REQUIRED) -> K | D:
        """The metadata value `key` as `kind` (str, int, float or bool; an integer is accepted as a float).

        Raises MissingMetadata without a default, WrongMetadata when the value is of another kind.
        """
        if key not in self.metadata:
            return self._default(key, default)
        return self._as(key, self.metadata[key], kind)

    @overload
    def values(self, key: str, kind: type[K]) -> list[K]: ...
    @overload
    def values(self, key: str, kind: type[K], default: D) -> list[K] | D: ...
    def values(self, key: str, kind: type[K], default: D | _Required = REQUIRED) -> list[K] | D:
        """The metadata array `key`, every entry a `kind`; otherwise as `value`."""
        if key not in self.metadata:
            return self._default(key, default)
        found = self.metadata[key]
        if not isinstance(found, list):
            raise WrongMetadata(self.path, f"{key} is {_kind_name(found)}, not an array")
        if not found:
            return []
        self._as(key, found[0], kind)  # an array in a file has entries of one kind
        return [kind(entry) for entry in found]

    def _default(self, key: str, default: D | _Required) -> D:
        if isinstance(default, _Required):
            raise MissingMetadata(self.path, f"the metadata key {key} is missing")
        return default

    def _as(self, key: str, found: Value, kind: type[K]) -> K:
        if type(found) is kind or (kind is float and type(found) is int):
            return kind(found)
        raise WrongMetadata(self.path, f"{key} is {_kind_name(found)}, not of kind {kind.__name__}")

    def info(self, name: str) -> TensorInfo:
        """Raises MissingTensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise MissingTensor(self.path, "it is missing", tensor=name) from None

    def raw(self, name: str) -> torch.Tensor:
        """The tensor's bytes, uint8 [rows, bytes per row]: a view of the read-only mapping (writing to it would
        end the process).

        Raises MissingTensor.
        """
        info = self.info(name)
        return self._data[info.offset : info.offset + info.nbytes].view(prod(info.shape[:-1]), -1)

    def check(self, name: str, shape: Sequence[int] | None = None) -> TensorInfo:
        """The tensor's header, once it is certain that `tensor` can read it.

        Raises MissingTensor; WrongTensorShape when a `shape` is given and differs; UnsupportedTensorType.
        """
        info = self.info(name)
        if shape is not None and tuple(shape) != info.shape:
            problem = f"its shape is {list(info.shape)}, the metadata asks for {list(shape)}"
            raise WrongTensorShape(self.path, problem, tensor=name)
        if info.type not in CODECS:
            raise UnsupportedTensorType(self.path, f"the type {info.type.name} can't be read", tensor=name)
        return info

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> torch.Tensor:
        """The tensor dequantised to float32, in torch order (a matrix is [outputs, inputs]), in own memory.

        Raises as `check`.
        """
        info = self.check(name, shape)
        return dequantise(self.raw(name), info.type).view(info.shape)


def _kind_name(found: Value) -> str:
    return "an array" if isinstance(found, list) else f"of kind {type(found).__name__}"
