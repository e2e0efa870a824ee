"""Dequantisation of every tensor type that files of the family use, in torch operations on whole blocks.

A codec writes the float32 weights of `n` blocks, given as their bytes, into `out` [n, weights a block]. Layouts
are those of llama.cpp's blocks; each codec multiplies and adds in the order that gives the very bits of the
`gguf` package's dequantisation. Scales are IEEE halves unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gguf.quants import IQ3_S
from torch import Tensor

from server.gguf.types import TensorType, block_size

Codec = Callable[[Tensor, Tensor], None]

# Weights dequantised at a time on a CPU. Temporaries of this size stay in a core's cache, and torch doesn't split
# work this small among threads: waiting for a busy core at every small step would cost ten times the work.
CHUNK = 1 << 15

# The 16 levels of the IQ4 types and, doubled, those of a 4-bit float with 2 exponent bits and 1 mantissa bit.
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def dequantise(raw: Tensor, type: TensorType) -> Tensor:
    """uint8 [rows, bytes per row] -> float32 [rows, columns] on the same device, in memory of its own.

    KeyError for a type without a codec (`CODECS` lists those that have one); ValueError when the bytes of a
    row aren't whole blocks.
    """
    codec = CODECS[type]
    weights, size = block_size(type)
    rows, row_bytes = raw.shape
    if row_bytes % size:
        raise ValueError(f"{row_bytes} bytes a row are not whole {type.name} blocks of {size} bytes")
    blocks = raw.reshape(-1, size)
    out = torch.empty(blocks.shape[0], weights, dtype=torch.float32, device=raw.device)
    step = CHUNK // weights if raw.device.type == "cpu" else max(1, blocks.shape[0])
    for start in range(0, blocks.shape[0], step):
        codec(blocks[start : start + step], out[start : start + step])
    return out.view(rows, row_bytes // size * weights)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The half-precision number at byte `at` of each block, float32 [n, 1]."""
    return blocks[:, at : at + 2].view(torch.float16).float()


def _pairs(nibbles: Tensor) -> Tensor:
    """Low, then high nibbles: uint8 [..., k] -> [..., 2, k]."""
    return torch.stack((nibbles & 15, nibbles >> 4), -2)


def _shifted(packed: Tensor, bits: int, count: int) -> Tensor:
    """`count` fields of `bits` bits, lowest first: uint8 [..., k] -> [..., count, k]."""
    mask = (1 << bits) - 1
    return torch.stack([(packed >> (bits * i)) & mask for i in range(count)], -2)


def _f32(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float32))


def _f16(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float16))


def _bf16(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.bfloat16))


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    torch.mul(blocks[:, 2:].view(torch.int8), _half(blocks, 0), out=out)


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    out.view(-1, 2, 16).copy_(_pairs(blocks[:, 2:]))
    out.sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    out.view(-1, 2, 16).copy_(_pairs(blocks[:, 4:]))
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _fifth_bits(packed: Tensor) -> Tensor:
    """Bit i of 4 bytes as 16 for weight i: uint8 [n, 4] -> [n, 2, 16]."""
    return (_shifted(packed, 1, 8).transpose(1, 2) << 4).reshape(-1, 2, 16)


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    out.view(-1, 2, 16).copy_(_pairs(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]))
    out.sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    out.view(-1, 2, 16).copy_(_pairs(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]))
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q2_k(blocks: Tensor, out: Tensor) -> None:
    scales = blocks[:, :16]
    out = out.view(-1, 16, 16)
    out.view(-1, 2, 4, 32).copy_(_shifted(blocks[:, 16:80].view(-1, 2, 32), 2, 4))
    out.mul_((_half(blocks, 80) * (scales & 15)).unsqueeze(2))
    out.sub_((_half(blocks, 82) * (scales >> 4)).unsqueeze(2))


def _q3_k(blocks: Tensor, out: Tensor) -> None:
    high_bits, low_bits, packed = blocks[:, :32], blocks[:, 32:96].view(-1, 2, 32), blocks[:, 96:108]
    scales = _pairs(packed[:, :8]).view(-1, 16) | (_shifted(packed[:, 8:], 2, 4) << 4).view(-1, 16)
    codes = _shifted(low_bits, 2, 4).view(-1, 8, 32) | (_shifted(high_bits, 1, 8) << 2)
    out.view(-1, 8, 32).copy_(codes)
    out.sub_(4)
    out.view(-1, 16, 16).mul_((_half(blocks, 108) * (scales.float() - 32)).unsqueeze(2))


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 6-bit scales and mins of the eight sub-blocks of Q4_K and Q5_K: uint8 [n, 12] -> two of [n, 8]."""
    first, second, rest = packed.view(-1, 3, 4).unbind(1)
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), 1)
    mins = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), 1)
    return scales, mins


def _scale_and_shift(blocks: Tensor, out: Tensor) -> None:
    """Codes in `out` -> weights, by the scales at the head of a Q4_K or Q5_K block."""
    scales, mins = _k_scales(blocks[:, 4:16])
    out = out.view(-1, 8, 32)
    out.mul_((_half(blocks, 0) * scales).unsqueeze(2))
    out.sub_((_half(blocks, 2) * mins).unsqueeze(2))


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    out.view(-1, 4, 2, 32).copy_(_pairs(blocks[:, 16:].view(-1, 4, 32)))
    _scale_and_shift(blocks, out)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    codes = _pairs(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    out.view(-1, 8, 32).copy_(codes | (_shifted(blocks[:, 16:48], 1, 8) << 4))
    _scale_and_shift(blocks, out)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    low = _pairs(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    high = _shifted(blocks[:, 128:192].view(-1, 2, 32), 2, 4)
    out.view(-1, 2, 4, 32).copy_(low | (high << 4))
    scales = blocks[:, 192:208].view(torch.int8)
    out.sub_(32)
    out.view(-1, 16, 16).mul_((_half(blocks, 208) * scales).unsqueeze(2))


def _levels(table: tuple[int, ...], codes: Tensor) -> Tensor:
    levels = torch.tensor(table, dtype=torch.float32, device=codes.device)
    # index_select stays on one thread for a chunk; indexing by a tensor would not
    return levels.index_select(0, codes.int().view(-1)).view(codes.shape)


def _iq4_nl(blocks: Tensor, out: Tensor) -> None:
    out.view(-1, 2, 16).copy_(_levels(IQ4_LEVELS, _pairs(blocks[:, 2:])))
    out.mul_(_half(blocks, 0))


def _iq4_xs(blocks: Tensor, out: Tensor) -> None:
    high = _shifted(blocks[:, 2:4], 2, 4).transpose(1, 2).reshape(-1, 8)
    low = _pairs(blocks[:, 4:8]).transpose(1, 2).reshape(-1, 8)
    scales = (low | (high << 4)).float() - 32
    out.view(-1, 8, 2, 16).copy_(_levels(IQ4_LEVELS, _pairs(blocks[:, 8:].view(-1, 8, 16))))
    out.view(-1, 8, 32).mul_((_half(blocks, 0) * scales).unsqueeze(2))


def _mxfp4(blocks: Tensor, out: Tensor) -> None:
    """An 8-bit exponent a block; half the power of two (subnormal for 0 and 1), as the levels are doubled."""
    exponent = blocks[:, :1].int()
    bits = torch.where(exponent < 2, 0x00200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    out.view(-1, 2, 16).copy_(_levels(MXFP4_LEVELS, _pairs(blocks[:, 1:])))
    out.mul_(bits.view(torch.float32))


def _iq3_s(blocks: Tensor, out: Tensor) -> None:
    """Groups of four weights from a codebook of 512, signs apart, a 4-bit scale for 32 weights."""
    high = _shifted(blocks[:, 66:74], 1, 8).transpose(1, 2).reshape(-1, 64)
    codes = blocks[:, 2:66].int() | (high.int() << 8)
    signs = _shifted(blocks[:, 74:106], 1, 8).transpose(1, 2).reshape(-1, 8, 32)
    scales = _pairs(blocks[:, 106:110]).transpose(1, 2).reshape(-1, 8)
    out.view(-1, 64, 4).copy_(_iq3_s_codebook().to(out.device).index_select(0, codes.view(-1)).view(-1, 64, 4))
    out.view(-1, 8, 32).mul_((_half(blocks, 0) * (1 + 2 * scales)).unsqueeze(2)).mul_(1 - 2 * signs.float())


def _iq3_s_codebook() -> Tensor:
    """float32 [512, 4]. The package is asked for it because it follows no formula."""
    IQ3_S.init_grid()  # type: ignore[no-untyped-call]
    return torch.from_numpy(IQ3_S.grid).view(512, 4)


CODECS: dict[TensorType, Codec] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q2_K: _q2_k,
    TensorType.Q3_K: _q3_k,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
    TensorType.IQ4_NL: _iq4_nl,
    TensorType.IQ4_XS: _iq4_xs,
    TensorType.IQ3_S: _iq3_s,
    TensorType.MXFP4: _mxfp4,
}
SCALES: dict[TensorType, tuple[int, ...]] = {
    TensorType.Q8_0: (0,),
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q2_K: (80, 82),
    TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,),
    TensorType.IQ4_XS: (0,),
    TensorType.IQ3_S: (0,),
}
"""Where the halves of a block stand. Its weights are finite exactly when they are, and below 1e9."""
