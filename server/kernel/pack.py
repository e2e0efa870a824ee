"""Weights of a file as tiles: from rows of blocks to the order in which the kernel's warps read them.

A matrix lies in memory as [group][column tile][row tile] of whole tiles. A tile has 16 rows and `TILE_COLUMNS` columns,
and its parts follow each other:

| type | bytes | what |
|---|---|---|
| Q4_K | 2048, 128, 128, 64 | pairs of codes; scales; minima; d and dmin |
| Q5_K | 2048, 512, 128, 128, 64 | low 4 bits of the codes, in pairs; fifth bits; the rest as Q4_K |
| Q6_K | 2048, 1024, 256, 32 | low 4 bits of code - 32, in pairs; its high 2 bits; scales + 128; d |
| Q8_0 | 4096, 256 | codes; scales |
| F16, BF16, F32 | 4096 | values |

Lane 4g + t of a warp (g < 8, t < 4) multiplies rows g and g + 8 of a tile. Of 32 codes of a row it needs those of
columns 4t … 4t+3 and 16+4t … 16+4t+3: a word each, so four words for both rows, the rows alternating fastest.
`unpack` says the same with indices. Rows and columns that the matrix doesn't have are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from server.gguf.reader import ModelFile
from server.gguf.types import TensorType, block_size
from server.kernel.model import KernelModel
from server.kernel.plan import streamed_strips
from server.kernel.tiles import TILE_BYTES, TILE_COLUMNS, TILE_ROWS

CPU_CHUNK, GPU_CHUNK = 1 << 20, 1 << 26
"""Bytes of rows that are packed at a time: on a CPU they stay in its cache, on a GPU they keep it busy."""

Packer = Callable[[Tensor, Tensor], None]
"""Packs rows [groups, column tiles, row tiles, 2, 8, bytes of a tile's row] into tiles [groups, column tiles, row
tiles, bytes of a tile]. Row 8h + g of a tile is at [h, g]."""


def packed_weights(
    file: ModelFile, model: KernelModel, draft_ids: Sequence[int] | None = None, device: torch.device | str = "cpu"
) -> dict[tuple[str, bool], Tensor]:
    """All matrices that launches stream, as tiles on the device: (tensor, whether its rows are the draft head's) ->
    uint8 [groups, column tiles, row tiles, bytes of a tile]. Beside them a chunk of rows takes memory there.

    draft_ids: ascending token ids of the draft head's rows (None: the first ones). ValueError when they are not as many
    as the model's.
    """
    ids = torch.arange(model.draft_rows) if draft_ids is None else torch.tensor(list(draft_ids), dtype=torch.int64)
    if len(ids) != model.draft_rows:
        raise ValueError(f"{len(ids)} ids for a draft head of {model.draft_rows} rows")
    packed = {}
    for strip in streamed_strips(model):
        for matrix in strip.matrices:
            raw = file.raw(matrix.tensor)
            rows = raw[ids] if matrix.draft else raw
            packed[matrix.tensor, matrix.draft] = pack(rows, matrix.type, strip.group_rows, device)
    return packed


def pack(raw: Tensor, type: TensorType, group_rows: int, device: torch.device | str | None = None) -> Tensor:
    """uint8 [rows, bytes per row] as in the file -> uint8 [groups, column tiles, row tiles, bytes of a tile].

    group_rows: a multiple of 16. device: where the tiles are made, a chunk of rows at a time (None: where `raw` is).
    KeyError for a type that the kernel doesn't read; ValueError when a row isn't whole blocks.
    """
    packer = PACKERS[type]
    weights, size = block_size(type)
    rows, row_bytes = raw.shape
    if row_bytes % size:
        raise ValueError(f"{row_bytes} bytes a row are not whole {type.name} blocks of {size} bytes")
    device = raw.device if device is None else torch.device(device)
    tile_row = TILE_COLUMNS[type] // weights * size
    column_tiles, row_tiles, groups = -(-row_bytes // tile_row), group_rows // TILE_ROWS, -(-rows // group_rows)
    tiles = torch.empty(groups, column_tiles, row_tiles, TILE_BYTES[type], dtype=torch.uint8, device=device)
    chunk = max(1, (CPU_CHUNK if device.type == "cpu" else GPU_CHUNK) // (group_rows * column_tiles * tile_row))
    for group in range(0, groups, chunk):
        stop = min(group + chunk, groups)
        found = raw[group * group_rows : stop * group_rows]
        whole = torch.zeros((stop - group) * group_rows, column_tiles * tile_row, dtype=torch.uint8, device=device)
        whole[: len(found), :row_bytes] = found
        if type == TensorType.Q6_K:  # the code of a zero is 32
            whole.view(len(whole), column_tiles, size)[len(found) :, :, 128:192] = 0b10101010
        by_row = whole.view(stop - group, row_tiles, 2, 8, column_tiles, tile_row)
        packer(by_row.permute(0, 4, 1, 2, 3, 5), tiles[group:stop])
    return tiles


def _put(tiles: Tensor, at: int, order: str, parts: Tensor) -> None:
    """Writes parts [groups, column tiles, row tiles, ...] from byte `at` of every tile on.

    order: the axes behind the third and how they follow each other in the tile, as "hgw gwh" for axes h, g, w.
    """
    given, wanted = order.split()
    placed = parts.permute(0, 1, 2, *(3 + given.index(axis) for axis in wanted))
    nbytes = placed[0, 0, 0].numel() * parts.element_size()
    area = tiles[..., at : at + nbytes].view(parts.dtype)
    area.view(placed.shape).copy_(placed)


def _words(rows: Tensor, *shape: int) -> Tensor:
    """Bytes [..., n] as words of 4, the last axis in `shape`."""
    return rows.view(torch.int32).view(*rows.shape[:-1], *shape)


def _float32(rows: Tensor, tiles: Tensor) -> None:
    _put(tiles, 0, "hgstj shgtj", _words(rows, 4, 4, 4))


def _half(rows: Tensor, tiles: Tensor) -> None:
    """16 columns: the words of columns 4t and 4t+1 of both rows, then those of columns 4t+2 and 4t+3."""
    _put(tiles, 0, "hgstw sgtwh", _words(rows, 8, 4, 2))


def _q8_0(rows: Tensor, tiles: Tensor) -> None:
    blocks = rows.view(*rows.shape[:-1], 8, 34)
    _put(tiles, 0, "hgbst bgtsh", _words(blocks[..., 2:].contiguous(), 2, 4))
    _put(tiles, 4096, "hgbi ghbi", blocks[..., :2].view(torch.int16))


def _q4_k(rows: Tensor, tiles: Tensor) -> None:
    _put(tiles, 0, "hgpst pgtsh", _words(rows[..., 16:], 4, 2, 4))  # blocks 2p, 2p+1 are pairs in the file too
    _scales(rows, tiles, 2048)


def _q5_k(rows: Tensor, tiles: Tensor) -> None:
    _put(tiles, 0, "hgpst pgtsh", _words(rows[..., 48:], 4, 2, 4))
    packed = _words(rows[..., 16:48], 2, 4)  # bit b of a byte is block b's
    fifth = torch.stack([(packed >> b) & 0x01010101 for b in range(8)], 5)
    fifth = fifth.view(*fifth.shape[:5], 4, 2, 2, 4)
    fifth = fifth.select(3, 0) | (fifth.select(3, 1) << 1)  # from [..., h, g, p, odd, s, t] to [..., g, p, odd, s, t]
    fifth = fifth.select(-2, 0) | (fifth.select(-2, 1) << 2)  # [..., g, p, odd, t]
    fifth = fifth.select(-2, 0) | (fifth.select(-2, 1) << 4)  # [..., g, p, t]
    _put(tiles, 2048, "gpt gtp", fifth)
    _scales(rows, tiles, 2560)


def _scales(rows: Tensor, tiles: Tensor, at: int) -> None:
    """What Q4_K and Q5_K share: 8 scales and 8 minima of 6 bits, packed in 12 bytes, and their own two scales."""
    first, second, rest = _words(rows[..., 4:16], 3).unbind(-1)
    low, high = 0x0F0F0F0F, 0x03030303
    scales = torch.stack((first & 0x3F3F3F3F, (rest & low) | (((first >> 6) & high) << 4)), -1)
    minima = torch.stack((second & 0x3F3F3F3F, ((rest >> 4) & low) | (((second >> 6) & high) << 4)), -1)
    _put(tiles, at, "hgb ghb", scales)
    _put(tiles, at + 128, "hgp gph", minima.view(torch.int16))
    _put(tiles, at + 256, "hgi ghi", _words(rows[..., :4], 1))


def _q6_k(rows: Tensor, tiles: Tensor) -> None:
    """Codes less 32 as numbers of 6 bits: the code with its highest bit turned over."""
    packed = _words(rows[..., :128].contiguous(), 2, 2, 2, 4)  # a byte: a block, and the one two behind it
    first, second = packed.unbind(-3)
    low = 0x0F0F0F0F
    pairs = torch.stack(((first & low) | ((second & low) << 4), ((first >> 4) & low) | (second & ~low)), 6)
    _put(tiles, 0, "hgnpst npgtsh", pairs)
    packed = _words(rows[..., 128:192].contiguous(), 2, 2, 4)  # a byte: four blocks
    high = torch.stack([((packed >> (2 * b)) & 0x03030303) ^ 0x02020202 for b in range(4)], 6)
    high = high.select(3, 0) | (high.select(3, 1) << 2)  # from [..., h, g, n, block, s, t] to [..., g, n, block, s, t]
    high = high.select(-2, 0) | (high.select(-2, 1) << 4)  # [..., g, n, block, t]
    _put(tiles, 2048, "gnpit npgti", high.view(*high.shape[:5], 2, 2, 4))
    _put(tiles, 3072, "hgb hgb", rows[..., 192:208] ^ 0x80)
    _put(tiles, 3328, "hgi ghi", rows[..., 208:].view(torch.int16))


PACKERS: dict[TensorType, Packer] = {
    TensorType.F32: _float32,
    TensorType.F16: _half,
    TensorType.BF16: _half,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}


def unpack(tiles: Tensor, type: TensorType, rows: int, columns: int) -> Tensor:
    """What `pack` made -> float32 [rows, columns], to the bit what `dequantise` makes of the rows in the file. Slow:
    it looks every weight's bytes up where the container's description says they are."""
    row = torch.arange(TILE_ROWS, device=tiles.device)[:, None]
    column = torch.arange(TILE_COLUMNS[type], device=tiles.device)[None]
    values = _values(tiles, type, row, column)  # [groups, column tiles, row tiles, 16, tile columns]
    return values.permute(0, 2, 3, 1, 4).flatten(3, 4).flatten(0, 2)[:rows, :columns].contiguous()


def _values(tiles: Tensor, type: TensorType, row: Tensor, column: Tensor) -> Tensor:
    g, h = row % 8, row // 8
    if type == TensorType.F32:
        at = column // 16 * 1024 + h * 512 + (4 * g + column % 16 // 4) * 16 + column % 4 * 4
        return _numbers(tiles, at, torch.float32)
    if type in (TensorType.F16, TensorType.BF16):
        lane, word = 4 * g + column % 16 // 4, 2 * (column % 4 // 2) + h
        at = column // 16 * 512 + lane * 16 + word * 4 + column % 2 * 2
        return _numbers(tiles, at, torch.float16 if type == TensorType.F16 else torch.bfloat16)
    block, lane, register, byte = column // 32, 4 * g + column % 16 // 4, 2 * (column % 32 // 16) + h, column % 4
    if type == TensorType.Q8_0:
        codes = _numbers(tiles, block * 512 + lane * 16 + register * 4 + byte, torch.int8)
        return codes * _numbers(tiles, 4096 + g * 32 + h * 16 + block * 2, torch.float16)
    pair, odd = block // 2, block % 2
    codes = (_numbers(tiles, pair * 512 + lane * 16 + register * 4 + byte, torch.uint8).int() >> (4 * odd)) & 15
    if type == TensorType.Q6_K:
        two = _numbers(tiles, 2048 + pair * 256 + lane * 8 + odd * 4 + byte, torch.uint8).int() >> (2 * register) & 3
        codes |= two << 4
        scales = _numbers(tiles, 3072 + row * 16 + column // 16, torch.uint8).int() - 128
        return (codes - 64 * (codes >> 5)) * (_numbers(tiles, 3328 + g * 4 + h * 2, torch.float16) * scales)
    behind = 2048
    if type == TensorType.Q5_K:
        words = _numbers(tiles, 2048 + lane * 16 + pair * 4 + byte, torch.uint8).int()
        codes |= (words >> (4 * odd + register) & 1) << 4
        behind = 2560
    scales = _numbers(tiles, behind + g * 16 + h * 8 + block, torch.uint8)
    minima = _numbers(tiles, behind + 128 + (4 * g + pair) * 4 + 2 * h + odd, torch.uint8)
    d, dmin = (_numbers(tiles, behind + 256 + g * 8 + h * 4 + i, torch.float16) for i in (0, 2))
    return codes * (d * scales) - dmin * minima


def _numbers(tiles: Tensor, at: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers at bytes `at` of every tile; [..., *at.shape]: halves as float32, integers as they are."""
    found = torch.stack([tiles[..., at + byte] for byte in range(dtype.itemsize)], -1).view(dtype).squeeze(-1)
    return found.float() if dtype.is_floating_point else found
