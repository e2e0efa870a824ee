"""Tensor types of a GGUF file: numbers, block lengths and block sizes, as the `gguf` package lists them."""

from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as TensorType

__all__ = ["TensorType", "block_size", "row_bytes"]


def block_size(type: TensorType) -> tuple[int, int]:
    """(weights a block, bytes a block)."""
    return GGML_QUANT_SIZES[type]


def row_bytes(type: TensorType, columns: int) -> int:
    """Bytes of one row of `columns` weights; ValueError unless whole blocks make up the row."""
    weights, size = GGML_QUANT_SIZES[type]
    if columns % weights:
        raise ValueError(f"rows of {columns} weights are not whole {type.name} blocks of {weights}")
    return columns // weights * size
