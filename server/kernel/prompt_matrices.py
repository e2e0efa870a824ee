"""The decode kernel's tiles as matrices for prompts, made when they are wanted: so weights are on a GPU once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from server.gguf.codecs import dequantise
from server.gguf.types import TensorType
from server.kernel.device import DeviceModel
from server.kernel.model import KernelModel
from server.kernel.pack import unpack
from server.kernel.tiles import TILE_ROWS
from server.model.weights import gate_width

if TYPE_CHECKING:
    from server.model.weights import Part


class TileMatrices:
    """`server.model.weights.Matrices` of a model whose tiles are on a device. dtype: of what is made."""

    def __init__(self, model: KernelModel, weights: DeviceModel, dtype: torch.dtype) -> None:
        self._types: Mapping[str, TensorType] = model.types
        self._weights = weights
        device = next(iter(weights.matrices.values())).device
        self.scratch = torch.empty(scratch_size(model), dtype=dtype, device=device)

    def fill(self, part: Part, first: int, out: Tensor) -> None:
        if part.name is None:
            out.zero_()
            return
        tiles = self._weights.matrices[part.name, part.draft]
        type = self._types[part.name]
        group_rows = tiles.shape[2] * TILE_ROWS
        count = len(out) if part.every is None else part.file_rows
        groups = tiles[first // group_rows : -(-(first + count) // group_rows)]
        if tiles.device.type == "cpu":
            out.copy_(part.of(unpack(groups, type, count, out.shape[1])))
        else:
            from server.kernel.unpack_gpu import unpack_into

            unpack_into(out, groups, type, part.every or (count, 0, count))

    def rows(self, name: str, ids: Tensor) -> Tensor:
        table = self._weights.tables[name]
        return dequantise(table[ids], self._types[name]).to(self.scratch.dtype)


def scratch_size(model: KernelModel) -> int:
    """Values of the largest matrix of a layer: larger ones are made in pieces."""
    c = model.config
    by_hidden = (
        2 * c.ffn,
        c.conv_channels + c.value_width + 2 * gate_width(c),
        2 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim,
    )
    return c.hidden * max(*by_hidden, c.value_width, c.heads * c.head_dim, 2 * c.hidden)
