"""The decode kernel on the emulator: a `cycle.Launch` like the interpreter and the GPU's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from emulated import Emulated
from torch import Tensor

from server.kernel.device import DeviceBuffers, DeviceModel
from server.kernel.lower import Control, Tables, lower
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers, count
from server.kernel.source import THREADS, Shape, constants, row_slots, row_tiles, shape, texts

EXPORTS = """
extern "C" u32 shared_total() { return SHARED_TOTAL; }
"""


class EmulatedKernel:
    """One model on `sms` imagined SMs.

    shapes: how shared memory is used, by row tiles (None: as on an H200). seed, delay: see `Emulated.run`. patch: text
    of the device code and what stands in its place, everywhere. all_types: compiled for every type of matrices.
    """

    def __init__(
        self,
        model: KernelModel,
        weights: DeviceModel,
        sms: int,
        *,
        shapes: dict[int, Shape] | None = None,
        arch: int = 90,
        seed: int = 0,
        delay: int = 200,
        epoch: int = 0,
        patch: tuple[str, str] | None = None,
        all_types: bool = False,
    ) -> None:
        self.model = model
        self.weights = weights
        self.sms = sms
        self.arch = arch
        self.seed = seed
        self.delay = delay
        self.shapes = shapes or {tiles: shape(model, arch, tiles) for tiles in (1, 2)}
        self.control = Control(sms, "cpu", epoch)
        self.patch = patch
        self.all_types = all_types
        self._variants: dict[int, Emulated] = {}

    def new_buffers(self, capacity: int, logits: bool = True) -> DeviceBuffers:
        """Scratch is full of nonsense, and behind every buffer memory is closed."""
        at = DeviceBuffers(self.model, self.sms, capacity, logits, allocate=self._zeros)
        for name, buffer in at.listed.items():
            if buffer.kind == "f32" and not buffer.kept:
                at[name].fill_(torch.nan)
            elif buffer.kind == "int8":
                at[name].fill_(0x11)
        return at

    def _zeros(self, wanted: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.variant(1).empty(wanted, dtype).zero_()

    def run(self, plan: Plan, at: Buffers, first: int = 0, stop: int | None = None) -> None:
        """A launch of the plan's instructions first .. stop - 1."""
        assert isinstance(at, DeviceBuffers)
        tables = self.tables(plan, at)
        rows = max(plan.rows, count(at, "behind"))
        parameter = self.control.launch(tables, at, first, (tables.count if stop is None else stop) - first)
        emulated = self.variant(row_tiles(rows))
        at.row_slots = row_slots(row_tiles(rows))
        emulated.run(
            parameter, self.sms, emulated.function("shared_total")(), THREADS, seed=self.seed, delay=self.delay
        )
        self.seed += 1

    def tables(self, plan: Plan, at: DeviceBuffers) -> Tables:
        key = (plan.rows, plan.drafts, plan.logits)
        if key not in at.tables:
            at.tables[key] = lower(plan, self.weights, at)
        return at.tables[key]

    def variant(self, tiles: int) -> Emulated:
        if tiles not in self._variants:
            wanted = replace(self.shapes[tiles], row_tiles=tiles)
            device_texts = [(name, text) for name, text in texts() if name not in ("types.cuh", "primitives.cuh")]
            if self.patch is not None:
                assert any(self.patch[0] in text for _, text in device_texts), f"the device code has no {self.patch[0]}"
                device_texts = [(name, text.replace(*self.patch)) for name, text in device_texts]
            found = constants(self.model, self.sms, self.arch, wanted)
            if self.all_types:
                found |= {name: "1" for name in found if name.startswith("HAS_")}
            self._variants[tiles] = Emulated([*device_texts, ("exports", EXPORTS)], found)
        return self._variants[tiles]
