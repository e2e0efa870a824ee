"""Our own quantiser: float32 weights into the blocks of a GGUF file.

The K-quants' scales and codes are searched for the least squared error (kquant_search.py); here they are packed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from server.gguf.kquant_search import search_affine, search_symmetric, stored
from server.gguf.types import TensorType, block_size, row_bytes

Packer = Callable[[Tensor], Tensor]

# Weights quantised at a time: as in codecs.py for a CPU; elsewhere enough to fill the device.
CPU_CHUNK = 1 << 15
DEVICE_CHUNK = 1 << 24


class QuantisationError(ValueError):
    """Weights that a tensor type can't hold: rows that aren't whole blocks, NaN or infinite or too large values."""


def quantise(x: Tensor, type: TensorType) -> Tensor:
    """float32 [rows, columns] -> uint8 [rows, bytes per row], the blocks of `type`, on the same device.

    `PACKERS` lists the types. Raises QuantisationError.
    """
    if type not in PACKERS:
        raise QuantisationError(f"nothing here writes the type {type.name}")
    rows, columns = x.shape
    try:
        width = row_bytes(type, columns)
    except ValueError as error:
        raise QuantisationError(str(error)) from None
    weights, size = block_size(type)
    blocks = x.reshape(-1, weights)
    out = torch.empty(blocks.shape[0], size, dtype=torch.uint8, device=x.device)
    step = (CPU_CHUNK if x.device.type == "cpu" else DEVICE_CHUNK) // weights
    for start in range(0, blocks.shape[0], step):
        part = blocks[start : start + step].float()
        largest = float(part.abs().amax())
        if not largest <= LARGEST[type]:  # also when it is NaN
            raise QuantisationError(f"{type.name} can't hold a weight of magnitude {largest:g}")
        out[start : start + step] = PACKERS[type](part)
    return out.view(rows, width)


def _bytes(x: Tensor) -> Tensor:
    """Its bytes: [n] or [n, k] of any type -> uint8 [n, bytes]."""
    return x.contiguous().view(x.shape[0], -1).view(torch.uint8)


def _f32(x: Tensor) -> Tensor:
    return _bytes(x)


def _f16(x: Tensor) -> Tensor:
    return _bytes(x.half())


def _bf16(x: Tensor) -> Tensor:
    return _bytes(x.bfloat16())


def _q8_0(x: Tensor) -> Tensor:
    d = stored(x.abs().amax(1, keepdim=True) / 127)
    codes = (x / torch.where(d > 0, d, torch.inf)).round_().clamp_(-127, 127)
    return torch.cat((_bytes(d.half()), _bytes(codes.to(torch.int8))), 1)


def _sub_blocks(x: Tensor, size: int) -> Tensor:
    """[n, 256] -> [size, 256 / size, n], the axes that the searches want."""
    return x.view(-1, 256 // size, size).permute(2, 1, 0).contiguous()


def _in_order(codes: Tensor) -> Tensor:
    """The codes of a search back in the order of the weights, [n, 8, 32]."""
    return codes.permute(2, 1, 0).reshape(-1, 8, 32)


def _nibbles(low: Tensor, high: Tensor) -> Tensor:
    return (low & 15) | (high << 4)


def _affine_head(d: Tensor, dmin: Tensor, scales: Tensor, mins: Tensor) -> Tensor:
    """The 16 bytes that open a Q4_K or Q5_K block; of 6-bit numbers 4..7 the high bits are kept with 0..3."""
    scales, mins = scales.T, mins.T
    first = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    second = mins[:, :4] | ((mins[:, 4:] >> 4) << 6)
    return torch.cat((_bytes(d), _bytes(dmin), first, second, _nibbles(scales[:, 4:], mins[:, 4:])), 1)


def _q4_k(x: Tensor) -> Tensor:
    *head, codes = search_affine(_sub_blocks(x, 32), 15)
    codes = _in_order(codes)
    return torch.cat((_affine_head(*head), _nibbles(codes[:, 0::2], codes[:, 1::2]).flatten(1)), 1)


def _q5_k(x: Tensor) -> Tensor:
    *head, codes = search_affine(_sub_blocks(x, 32), 31)
    codes = _in_order(codes)
    places = torch.arange(8, dtype=torch.uint8, device=x.device).view(8, 1)
    fifth = ((codes >> 4) << places).sum(1, dtype=torch.uint8)
    return torch.cat((_affine_head(*head), fifth, _nibbles(codes[:, 0::2], codes[:, 1::2]).flatten(1)), 1)


def _q6_k(x: Tensor) -> Tensor:
    d, scales, codes = search_symmetric(_sub_blocks(x, 16))
    quarters = (_in_order(codes) + 32).view(torch.uint8).view(-1, 2, 4, 32)
    low = _nibbles(quarters[:, :, :2], quarters[:, :, 2:]).flatten(1)
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=x.device).view(4, 1)
    high = ((quarters >> 4) << places).sum(2, dtype=torch.uint8).flatten(1)
    return torch.cat((low, high, _bytes(scales.T), _bytes(d)), 1)


PACKERS: dict[TensorType, Packer] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}

HALF_MAX = 65504.0
LARGEST: dict[TensorType, float] = {
    TensorType.F32: torch.finfo(torch.float32).max,
    TensorType.F16: HALF_MAX,
    TensorType.BF16: torch.finfo(torch.bfloat16).max,
    TensorType.Q8_0: HALF_MAX * 127,
    TensorType.Q4_K: HALF_MAX * 63,
    TensorType.Q5_K: HALF_MAX * 63,
    TensorType.Q6_K: HALF_MAX * 127,
}
