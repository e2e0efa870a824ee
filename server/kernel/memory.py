"""How much device memory a model takes under the kernel: weights as tiles, and a sequence's buffers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from server.kernel.buffers import Buffer, buffers
from server.kernel.model import KernelModel
from server.kernel.plan import streamed_strips

RING_PARTS = (".conv", ".keys", ".deltas", ".decays")


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    weights: int
    """Matrices as tiles; the draft head's rows are there a second time."""
    embedding: int
    """Looked up by row, as in the file; a tied model streams it as tiles besides."""
    memories: int
    rings: int
    """Rows of two cycles in every recurrent layer: convolution inputs, keys, deltas, decays."""
    caches: int
    """Keys and values of trunk and MTP block."""
    scratch: int
    """What one launch hands on, counts and hidden rows; no logits."""

    @property
    def total(self) -> int:
        return self.weights + self.embedding + self.memories + self.rings + self.caches + self.scratch


def memory_plan(model: KernelModel, sms: int, capacity: int) -> Memory:
    """For one sequence of up to `capacity` positions on a GPU of `sms` SMs."""
    found = buffers(model, sms, capacity).values()
    memories = _bytes(b for b in found if b.name.endswith(".memory"))
    rings = _bytes(b for b in found if b.name.endswith(RING_PARTS))
    caches = _bytes(b for b in found if b.name.endswith((".k", ".v")))
    tables = {"token_embd.weight", model.draft_table} if model.config.mtp else {"token_embd.weight"}
    return Memory(
        weights=sum(strip.nbytes for strip in streamed_strips(model)),
        embedding=sum(model.file_bytes(table) for table in tables),
        memories=memories,
        rings=rings,
        caches=caches,
        scratch=_bytes(found) - memories - rings - caches,
    )


def _bytes(found: Iterable[Buffer]) -> int:
    return sum(buffer.nbytes for buffer in found)
