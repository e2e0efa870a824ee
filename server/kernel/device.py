"""What launches on a device read and write: a model's weights there, and a sequence's buffers in the kernel's layout.

Buffers have the shapes that `buffers.py` lists, so that `sequence.py` works on them as they are: counts and tokens are
int32, keys and values float16, everything else float32. Only 8-bit activations look different: the values of all rows,
then their scales, then their sums, block after block and in a block row after row; scales and sums have room for 8 or
16 rows in every block (see `cuda/types.cuh`). Whole tiles
of 256 columns are read, so there are blocks behind a row's end too; they hold anything finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from server.gguf.reader import ModelFile
from server.kernel.buffers import BLOCK, INT8_BLOCK_BYTES, MAX_DRAFTS, MAX_ROWS, Buffer, buffers
from server.kernel.model import KernelModel
from server.kernel.pack import packed_weights

if TYPE_CHECKING:
    from server.kernel.lower import Tables

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]
"""A tensor of zeros on the device."""

WHOLE_BLOCKS = 8
"""Blocks of the widest tile."""
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "i32": torch.int32, "int8": torch.uint8}
PLACES = torch.tensor([((k & 12) << 1) | ((k & 16) >> 2) | (k & 3) for k in range(BLOCK)])
"""Where value k of a block stands."""


@dataclass(frozen=True)
class DeviceModel:
    """A model's tensors on the device.

    matrices: tiles by (tensor, whether its rows are the draft head's). vectors: small tensors, float32. tables: rows
    of embeddings as in the file. draft_ids: int32, the tokens of the draft head's rows (None: the first ones).
    """

    matrices: Mapping[tuple[str, bool], Tensor]
    vectors: Mapping[str, Tensor]
    tables: Mapping[str, Tensor]
    draft_ids: Tensor | None

    @classmethod
    def from_file(
        cls,
        file: ModelFile,
        model: KernelModel,
        device: torch.device | str,
        draft_ids: Sequence[int] | None = None,
    ) -> DeviceModel:
        """Brings a file's weights to the device. draft_ids: as in `packed_weights`, whose errors it raises."""
        tables = {"token_embd.weight", model.draft_table} if model.config.mtp else {"token_embd.weight"}
        return cls(
            matrices=packed_weights(file, model, draft_ids, device),
            vectors={name: file.tensor(name).to(device).contiguous() for name in model.vectors()},
            tables={name: file.raw(name).to(device) for name in tables},
            draft_ids=None if draft_ids is None else torch.tensor(list(draft_ids), dtype=torch.int32, device=device),
        )


@dataclass(frozen=True)
class Int8Layout:
    """Byte offsets in a buffer of 8-bit activations of `width` columns."""

    width: int

    @property
    def blocks(self) -> int:
        """With those behind a row's end."""
        return -(-self.width // (BLOCK * WHOLE_BLOCKS)) * WHOLE_BLOCKS

    @property
    def nbytes(self) -> int:
        return MAX_ROWS * self.blocks * INT8_BLOCK_BYTES

    @property
    def scales(self) -> int:
        return MAX_ROWS * self.blocks * BLOCK

    @property
    def sums(self) -> int:
        return self.scales + MAX_ROWS * self.blocks * 4


class DeviceBuffers(dict[str, Tensor]):
    """A sequence's buffers on a device, by name; the tensors stay what they are, for launches know their addresses.

    tables: what launches on these buffers have been lowered to, by the plan's (rows, drafts, logits). last_rows: rows
    of the last launch, 0 before the first. row_slots: of the variant of the kernel that ran last, 8 or 16; `rounded`
    and `sums` read by it.
    """

    def __init__(
        self,
        model: KernelModel,
        sms: int,
        capacity: int,
        logits: bool = False,
        device: torch.device | str = "cpu",
        allocate: Allocate | None = None,
    ) -> None:
        """Room for `capacity` positions, all zeros. allocate: where the tensors come from."""
        super().__init__()
        self.listed: dict[str, Buffer] = buffers(model, sms, capacity, logits)
        self.sms = sms
        self.tables: dict[tuple[int, int, bool], Tables] = {}
        self.last_rows = 0
        self.row_slots = 8
        new = allocate or (lambda shape, dtype: torch.zeros(*shape, dtype=dtype, device=device))
        for name, buffer in self.listed.items():
            shape = (self.layout(name).nbytes,) if buffer.kind == "int8" else buffer.shape
            if not name.startswith("mtp.best."):
                self[name] = new(shape, _DTYPES[buffer.kind])
        if model.config.mtp:  # one behind the other, so that one address does for all
            best = new((MAX_DRAFTS, 1, sms, 2), torch.float32)
            self.update({f"mtp.best.{step}": best[step] for step in range(MAX_DRAFTS)})

    def layout(self, name: str) -> Int8Layout:
        return Int8Layout(self.listed[name].shape[-1])

    def rounded(self, name: str, rows: int, columns: int) -> Tensor:
        """What an 8-bit buffer, written for `rows` rows by the last launch, stands for: float32 [rows, columns].

        The second plane ("x.low") has the scales of the first over 254.
        """
        plane = "x.in" if name == "x.low" else name
        scales = self._words(plane, "scales", rows).view(torch.float32) / (254 if name == "x.low" else 1)
        values = self.codes(name, rows)[..., PLACES.to(self[name].device)]
        return (values * scales[..., None]).transpose(0, 1).flatten(1)[:, :columns]

    def codes(self, name: str, rows: int) -> Tensor:
        """int8 [blocks, rows, 32] as they stand in memory."""
        blocks = self.layout(name).blocks
        return self[name][: blocks * rows * BLOCK].view(torch.int8).view(blocks, rows, BLOCK)

    def _words(self, name: str, part: Literal["scales", "sums"], rows: int) -> Tensor:
        """int32 [blocks, rows], a view."""
        layout = self.layout(name)
        at, count = getattr(layout, part), layout.blocks * self.row_slots
        return self[name][at : at + 4 * count].view(torch.int32).view(layout.blocks, self.row_slots)[:, :rows]

    def sums(self, name: str, rows: int) -> Tensor:
        """scale · Σ values of every block, float32 [rows, blocks]."""
        words = self._words(name, "sums", rows)
        high, low = (words << 16).view(torch.float32), (words & -65536).view(torch.float32)
        return (high + low).t()
