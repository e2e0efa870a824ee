"""The chunk form of a Gated DeltaNet layer on a GPU: four kernels between the layer's two projections.

What `DeltaNet._chunks` describes, with the convolution before it and the norm behind it. Every pass over the rows
counts there: in torch's own operations a prompt of the 27B model would spend more time on them than on its matrices.
Products are of 10 bits (TF32), sums and the memory float32. Written in Triton, which comes with torch for CUDA; its
compiler keeps what it made in a cache of its own.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from server.model.activations import gpu_kernels
from server.model.config import ModelConfig
from server.model.weights import DeltaNetWeights, gate_width

SIZES = (32, 64, 128)
"""Sizes of a head's state that the kernels are written for."""
ROOMY = 220 * 1024
"""Bytes of shared memory, from which on a program has twice the columns and the next chunk on its way."""


@lru_cache(maxsize=1)
def _columns_and_stages() -> tuple[int, int]:
    """Of a program that advances the memory: how many of its columns it has, chunks that are loaded at a time."""
    roomy = torch.cuda.get_device_properties().shared_memory_per_block_optin >= ROOMY  # type: ignore[attr-defined]
    return (64, 2) if roomy else (32, 1)


def prefill(
    config: ModelConfig, mixed: torch.Tensor, w: DeltaNetWeights, conv: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    """mixed [T, all inputs] of a layer's first projection -> what goes into its last, [T, value width] in that type.

    conv [kernel - 1, channels] is the window before, float32; memory [value heads, D, D] float32 is advanced in place.
    Chunks begin with the first row.
    """
    k, c = gpu_kernels(), config
    rows, size, heads = mixed.shape[0], c.state_size, c.value_heads
    chunks = -(-rows // k.CHUNK)
    padded = chunks * k.CHUNK
    new = mixed.new_empty
    # Per head: queries, keys, values; zeros behind the last row.
    vectors = new(2 * c.key_heads + heads, padded, size, dtype=torch.float32)
    k.convolve[(chunks, 2 * c.key_heads + heads)](
        mixed, mixed.stride(0), rows, conv, w.conv, c.conv_channels, vectors, padded,
        2 * c.key_heads, c.key_heads, size, c.conv_kernel,
    )  # fmt: skip
    solved = new(2, heads, padded, size, dtype=torch.float32)
    weights = new(heads, padded, k.CHUNK, dtype=torch.float32)
    decays = new(heads, padded, dtype=torch.float32)
    first_gate = c.conv_channels + c.value_width
    k.solve[(chunks, heads)](
        mixed, mixed.stride(0), rows, first_gate, gate_width(c), w.time_bias, w.decay,
        vectors, padded, solved, weights, decays, c.key_heads, heads, size,
    )  # fmt: skip
    out = new(heads, padded, size, dtype=torch.float32)
    columns, stages = _columns_and_stages()
    columns = min(columns, size)
    k.advance[(heads, size // columns)](
        vectors, padded, chunks, solved, weights, decays, memory, out, c.key_heads, heads, size, columns,
        num_stages=stages,
    )  # fmt: skip
    result = new(rows, c.value_width)
    k.finish[(-(-rows // k.FINISHED_ROWS), heads)](
        out, padded, rows, mixed, mixed.stride(0), c.conv_channels, w.norm, c.eps, result, heads, size
    )
    return result
