"""Small models whose launches a kernel runs, on the emulator or on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from small_models import DRAFT_ROWS, SEEDS, Small, mixed_types, small_preset

from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.kernel.arithmetic import Arithmetic
from server.kernel.cycle import Cycles
from server.kernel.device import DeviceBuffers, DeviceModel
from server.kernel.interpreter import Interpreter
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers, take_over
from server.kernel.weights import Weights
from server.model.hybrid import HybridModel
from server.model.state import SequenceState
from server.synth.presets import Preset, tensor_shapes
from server.synth.write import synthetic_metadata, write_random_model

ROUNDED = Arithmetic(torch.float64, int8=True, half_cache=True)
"""What a kernel is compared with: its rounding, and nothing else."""


class Kernel(Protocol):
    sms: int

    def new_buffers(self, capacity: int, logits: bool = False) -> DeviceBuffers: ...

    def run(self, plan: Plan, at: Buffers, first: int = 0, stop: int | None = None) -> None: ...


MakeKernel = Callable[[KernelModel, DeviceModel], Kernel]


@dataclass
class OnKernel(Small):
    kernel: Kernel

    def start(self, prompt: list[int], token: int, capacity: int = 128) -> tuple[DeviceBuffers, SequenceState]:
        state = self.reference.new_state()
        self.reference.prefill(prompt, state)
        at = self.kernel.new_buffers(capacity, logits=True)
        take_over(at, self.model.config, state, token)
        return at, state

    def cycles(self, at: Buffers) -> Cycles:
        return Cycles(self.model, self.kernel.sms, at, self.kernel.run)


MakeOnKernel = Callable[..., OnKernel]
"""Makes a small model on a kernel; see the fixtures."""


def kernel_model_file(folder: Path, size: str, preset: Preset | None = None, type: TensorType | None = None) -> Path:
    """A small model with a size's ratios, or of a preset; matrices of one type, or of all types in turn."""
    path = folder / f"{size}-{type.name if type is not None else 'mixed'}.gguf"
    if not path.exists():
        preset = preset or small_preset(size)
        types = mixed_types(preset) if type is None else one_type(preset, type)
        write_random_model(path, preset, types, synthetic_metadata(preset, 0), SEEDS.get(size, 5))
    return path


def one_type(preset: Preset, type: TensorType) -> dict[str, TensorType]:
    """Matrices of one type, all else float32."""
    return {
        name: type if len(shape) == 2 and "conv1d" not in name else TensorType.F32
        for name, shape in tensor_shapes(preset).items()
    }


def on_kernel(path: Path, make: MakeKernel, device: str = "cpu") -> OnKernel:
    """The model in a file, with draft ids that aren't the first ones."""
    file = ModelFile.open(path)
    draft_ids = list(range(3, 3 + 2 * DRAFT_ROWS, 2))
    model = KernelModel.from_file(file, DRAFT_ROWS)
    reference = HybridModel.load(file, dtype=torch.float64, draft_rows=DRAFT_ROWS)
    kernel = make(model, DeviceModel.from_file(file, model, device, draft_ids))
    weights = Weights(file, model, ROUNDED.dtype, device, draft_ids)
    return OnKernel(file, model, reference, Interpreter(model, weights, ROUNDED, kernel.sms), kernel)
