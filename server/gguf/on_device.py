"""A model file whose tensors are dequantised on a device: on a GPU much faster than on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from server.gguf.codecs import dequantise
from server.gguf.header import Header
from server.gguf.reader import ModelFile


class FileOnDevice(ModelFile):
    """The same file; `tensor` gives tensors on the device."""

    def __init__(self, file: ModelFile, device: torch.device) -> None:
        super().__init__(file.path, Header(file.metadata, file.tensors), file._data)
        self.device = device

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        info = self.info(name)
        if shape is not None and tuple(shape) != info.shape:
            return super().tensor(name, shape)  # which says what is wrong
        return dequantise(self.raw(name).to(self.device), info.type).view(info.shape)
