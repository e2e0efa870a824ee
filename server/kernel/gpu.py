"""The decode kernel on an NVIDIA GPU: compiled when it is first needed, launched on torch's current stream.

cuda-bindings, of the extra `gpu`, is imported only here and in `compile.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from server.gguf.reader import ModelFile
from server.kernel.compile import INSTALL, CompiledKernel, Report, compile_kernel
from server.kernel.device import DeviceBuffers, DeviceModel
from server.kernel.errors import KernelCompileError, KernelFault, NoGpu
from server.kernel.lower import TIMES, Control, Tables, lower
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers, count
from server.kernel.source import ENTRY, FEW_ROWS, THREADS, find_arch, row_slots, row_tiles, waits
from server.kernel.structs import LaunchStruct

SM_SHIFT = 8
"""Of the fault word: the SM stands above where it waited."""


@dataclass(frozen=True)
class _Loaded:
    """A variant of the kernel in the device's context."""

    function: Any
    module: Any
    report: Report


class GpuKernel:
    """One model on one GPU. `run` is a `cycle.Launch` for buffers that `new_buffers` made.

    Launches of one GpuKernel follow each other on one stream, torch's current one of the device.
    """

    def __init__(
        self, model: KernelModel, weights: DeviceModel, *, timed: bool = False, cache: Path | None = None
    ) -> None:
        """weights: on the GPU that shall run the model. timed: with time stamps (`times`). cache: see `compile_kernel`.

        Raises UnsupportedByKernel for a GPU that it isn't written for, KernelCompileError without cuda-bindings.
        """
        self.model = model
        self.weights = weights
        self.device = next(iter(weights.matrices.values())).device
        if self.device.type != "cuda":
            raise ValueError(f"the weights are on {self.device}, not on a GPU")
        properties = torch.cuda.get_device_properties(self.device)
        self.arch = find_arch(properties.major, properties.minor)
        self.sms: int = properties.multi_processor_count
        self._timed = timed
        self._cache = cache
        self._variants: dict[int, _Loaded] = {}
        self._driver = _driver()
        # In the host's memory: it can be read when the device's context is broken.
        fault = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._control = Control(self.sms, self.device, fault=fault)

    @classmethod
    def from_file(
        cls,
        file: ModelFile,
        model: KernelModel,
        device: torch.device | str = "cuda",
        draft_ids: Sequence[int] | None = None,
        *,
        timed: bool = False,
    ) -> GpuKernel:
        """Brings the weights to the device first. draft_ids: as in `packed_weights`."""
        return cls(model, DeviceModel.from_file(file, model, device, draft_ids), timed=timed)

    def new_buffers(self, capacity: int, logits: bool = False) -> DeviceBuffers:
        """All buffers of a new sequence with room for `capacity` positions; `logits`: for plans that write them."""
        return DeviceBuffers(self.model, self.sms, capacity, logits, self.device)

    def prepare(self) -> dict[int, Report]:
        """Compiles both variants, if need be, and loads them -> their reports, by row tiles.

        Raises KernelCompileError, UnsupportedByKernel.
        """
        return {tiles: self._variant(tiles).report for tiles in (1, 2)}

    def run(self, plan: Plan, at: Buffers, first: int = 0, stop: int | None = None) -> None:
        """Run a launch on the buffers, or its instructions first .. stop - 1, and wait for its end.

        Raises KernelFault when it goes wrong; after that nothing more can be run in this process' context.
        """
        self.launch(plan, at, first, stop)
        self.wait()

    def launch(
        self, plan: Plan, at: Buffers, first: int = 0, stop: int | None = None, times: Tensor | None = None
    ) -> None:
        """The same without waiting. times: int64 [instructions, SMs, 6], for a kernel made with `timed`."""
        if not isinstance(at, DeviceBuffers):
            raise TypeError("a launch needs buffers that new_buffers made")
        if times is None and self._timed:
            raise ValueError("a kernel with time stamps needs a tensor for them")
        tables = self.tables(plan, at)
        behind = 0 if 0 < at.last_rows <= FEW_ROWS else count(at, "behind")
        tiles = row_tiles(max(plan.rows, behind))
        variant = self._variant(tiles)
        before = self._control.epoch
        parameter = self._control.launch(tables, at, first, (tables.count if stop is None else stop) - first, times)
        try:
            self._start(variant, parameter)
        except KernelFault:
            self._control.epoch = before
            raise
        at.last_rows, at.row_slots = plan.rows, row_slots(tiles)

    def wait(self) -> None:
        """Until all launches have ended. Raises KernelFault."""
        try:
            torch.cuda.current_stream(self.device).synchronize()
        except RuntimeError as error:
            raise KernelFault(self._fault(str(error).split("\n")[0])) from error
        if int(self._control.fault):
            raise KernelFault(self._fault("it ended all the same"))

    def times(self, plan: Plan, at: DeviceBuffers) -> Tensor:
        """A launch with time stamps -> int64 [instructions, SMs, 6]: nanoseconds at which an SM came to an instruction,
        was let in, had its input, had multiplied its tiles, had computed all, and had told the others; 0 where it had
        nothing to multiply. The kernel must have been made with `timed`."""
        found = torch.zeros(len(plan.instructions), self.sms, TIMES, dtype=torch.int64, device=self.device)
        self.launch(plan, at, times=found)
        self.wait()
        return found

    def tables(self, plan: Plan, at: DeviceBuffers) -> Tables:
        """The plan lowered for these buffers, made once."""
        key = (plan.rows, plan.drafts, plan.logits)
        if key not in at.tables:
            at.tables[key] = lower(plan, self.weights, at)
        return at.tables[key]

    def _variant(self, tiles: int) -> _Loaded:
        if tiles not in self._variants:
            compiled = compile_kernel(self.model, self.sms, self.arch, tiles, timed=self._timed, cache=self._cache)
            self._variants[tiles] = self._load(compiled)
        return self._variants[tiles]

    def _load(self, compiled: CompiledKernel) -> _Loaded:
        driver = self._driver
        with torch.cuda.device(self.device):
            torch.cuda.current_stream().synchronize()  # torch's context is there and current
            module = self._done("load the kernel", driver.cuModuleLoadData(compiled.cubin))
            function = self._done("find the kernel", driver.cuModuleGetFunction(module, ENTRY.encode()))
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            shared = compiled.report.shared_bytes
            self._done("reserve shared memory", driver.cuFuncSetAttribute(function, limit, shared))
        return _Loaded(function, module, compiled.report)

    def _start(self, variant: _Loaded, parameter: LaunchStruct) -> None:
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with torch.cuda.device(self.device):
            started = self._driver.cuLaunchCooperativeKernel(
                variant.function, self.sms, 1, 1, THREADS, 1, 1, variant.report.shared_bytes, stream,
                ctypes.addressof(pointers),
            )  # fmt: skip
        self._done("launch the kernel", started)

    def _done(self, what: str, answer: tuple[Any, ...]) -> Any:
        """The driver's answer; KernelFault when it is an error."""
        status, *found = answer
        if int(status):
            _, text = self._driver.cuGetErrorString(status)
            reason = text.decode() if isinstance(text, bytes) else str(status)
            raise KernelFault(f"the GPU's driver can't {what}: {reason}; the torch executor can run the model")
        return found[0] if found else None

    def _fault(self, reason: str) -> str:
        word = int(self._control.fault) & 0xFFFFFFFF
        if not word:
            return f"the decode kernel broke off: {reason}; restart the engine"
        if waits().get(word & (1 << SM_SHIFT) - 1) == "AT_SHARED_BASE":
            return (
                "the decode kernel was compiled for another layout of shared memory than this GPU has: please report "
                "this; the torch executor can run the model"
            )
        place = waits().get(word & (1 << SM_SHIFT) - 1, f"wait {word & (1 << SM_SHIFT) - 1}")
        return f"the decode kernel waited too long on SM {word >> SM_SHIFT}, {place}: {reason}; restart the engine"


def require_gpu() -> None:
    """Raises NoGpu where torch finds none, KernelCompileError without cuda-bindings."""
    if not torch.cuda.is_available():
        why = "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
        raise NoGpu(f"the decode kernel needs an NVIDIA GPU, and there is none: {why}")
    _driver()


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise KernelCompileError(f"cuda-bindings can't be imported ({error}): {INSTALL}") from error
    return driver
