"""Tensors that no trained model has: what an unfinished or spoilt copy of a file leaves behind.

Only damage that shows by itself is found. Bytes that were replaced by other plausible ones need a checksum.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from server.gguf.codecs import SCALES
from server.gguf.errors import DamagedTensor
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType, block_size

PAGE_BYTES = 4096
ZERO_RUN_PAGES = 16
"""Copies and downloads leave holes of whole pages. A trained matrix may have a row of zeros, or a few (units that
died), but not 64 KiB of them next to each other."""
PLAIN = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}
NORMAL = 1
"""``tokenizer.ggml.token_type`` of a token that text is made of."""


LARGEST = 1e9
"""Of a weight, in size: what a model has is far smaller, and what passes through far larger ones overflows."""


def check_values(file: ModelFile, name: str, values: torch.Tensor) -> None:
    """Raises DamagedTensor when a dequantised tensor holds a number that is not finite, or is beyond all reason."""
    low, high = torch.aminmax(values)  # a NaN comes through in both
    if not torch.isfinite(low) or not torch.isfinite(high):
        raise DamagedTensor(file.path, "it holds numbers that are not finite", tensor=name)
    largest = max(-float(low), float(high))
    if largest > LARGEST:
        raise DamagedTensor(file.path, f"it holds {largest:.0e}, which is no trained weight", tensor=name)


def check_bytes(file: ModelFile, name: str) -> None:
    """What `check_values` finds, from the bytes: in most types the scales tell, and nothing is dequantised."""
    info = file.info(name)
    raw = file.raw(name)
    if (plain := PLAIN.get(info.type)) is not None:
        check_values(file, name, raw.view(plain))
        return
    if info.type not in SCALES:
        check_values(file, name, file.tensor(name))
        return
    blocks = raw.view(-1, block_size(info.type)[1])
    for at in SCALES[info.type]:
        if not torch.isfinite(blocks[:, at : at + 2].view(torch.float16)).all():
            raise DamagedTensor(file.path, "it holds numbers that are not finite", tensor=name)


def check_zeros(file: ModelFile, name: str) -> None:
    """Raises DamagedTensor when all of a tensor's bytes are zero, or 64 KiB of a matrix in a row.

    Rows of a vocabulary's matrix may be zero where no text uses them; a bias may be zero altogether.
    """
    info = file.info(name)
    if ".ssm_dt" in name:
        return
    raw = file.raw(name)
    data = raw.view(-1)
    pages = len(data) // PAGE_BYTES
    head = data[: pages * PAGE_BYTES].view(pages, PAGE_BYTES).view(torch.int64)
    zero = ~head.any(1)
    if zero.all() and not data[pages * PAGE_BYTES :].any():
        raise DamagedTensor(file.path, "all of it is zero, as in an unfinished download", tensor=name)
    if len(info.shape) == 1 or int(zero.sum()) < ZERO_RUN_PAGES:
        return
    if _by_token(name):
        zero &= _used(file, info.shape[0])[torch.arange(pages) * PAGE_BYTES // raw.shape[1]]
    ends = [-1, *torch.nonzero(~zero).flatten().tolist(), pages]
    for before, after in pairwise(ends):
        if after - before > ZERO_RUN_PAGES:
            start, count = (before + 1) * PAGE_BYTES, (after - before - 1) * PAGE_BYTES
            problem = f"{count} of its bytes, from byte {info.offset + start} of the file, are zero, as in an "
            raise DamagedTensor(file.path, f"{problem}unfinished download", tensor=name)


def _by_token(name: str) -> bool:
    """Whether a matrix has a row for each token."""
    own = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")
    return name in ("token_embd.weight", "output.weight") or name.endswith(own)


def _used(file: ModelFile, rows: int) -> torch.Tensor:
    """bool [rows]: tokens that text is made of; all of them when the file doesn't say."""
    types = file.metadata.get("tokenizer.ggml.token_type")
    used = torch.zeros(rows, dtype=torch.bool)
    if not isinstance(types, list):
        return ~used
    known = torch.tensor([kind == NORMAL for kind in types[:rows]], dtype=torch.bool)
    used[: len(known)] = known
    return used
