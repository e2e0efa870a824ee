"""Small models with the ratios of each size and matrices of every type, and what runs them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tiny_model import write_tiny_model

from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.kernel.arithmetic import Arithmetic
from server.kernel.buffers import MAX_ROWS
from server.kernel.cycle import Cycles
from server.kernel.interpreter import Interpreter
from server.kernel.model import KernelModel
from server.kernel.sequence import Buffers, take_over
from server.kernel.weights import Weights
from server.model.hybrid import HybridModel
from server.model.state import SequenceState
from server.synth.presets import PRESETS, Preset, scaled_down, tensor_shapes
from server.synth.write import synthetic_metadata, write_random_model

SMS = 7
DRAFT_ROWS = 250
EXACT = Arithmetic(torch.float64)
KERNEL_LIKE = Arithmetic(torch.float32, int8=True, half_cache=True)
TYPES = ("Q4_K", "F16", "Q6_K", "Q8_0", "Q5_K", "BF16", "F32")
SIZES = ("0.8b", "4b", "27b")
"""1, 2 and 3 value heads a key head; 4 and 6 query heads a kv head; tied and untied."""
SEEDS = {"0.8b": 19, "4b": 9, "27b": 5}
"""Models whose greedy text doesn't soon repeat itself."""


def small_preset(name: str) -> Preset:
    """The ratios of a size: one recurrent and one attention layer, and the MTP block."""
    small = scaled_down(PRESETS[name], layers=2, hidden=256)
    return replace(small, full_attention_interval=2, head_dim=64, rope_dims=32, ffn=512, vocab=512)


def mixed_types(preset: Preset) -> dict[str, TensorType]:
    """Matrices take the types in turn, so that most phases mix them."""
    found, turn = {}, 0
    for name, shape in tensor_shapes(preset).items():
        matrix = len(shape) == 2 and "conv1d" not in name
        found[name] = TensorType[TYPES[turn % len(TYPES)]] if matrix else TensorType.F32
        turn += matrix
    return found


@dataclass
class Small:
    """One small model file, with the reference and the interpreter on it."""

    file: ModelFile
    model: KernelModel
    reference: HybridModel
    interpreter: Interpreter

    def start(self, prompt: list[int], token: int, capacity: int = 512) -> tuple[Buffers, SequenceState]:
        """A processed prompt in fresh buffers, and the state it came from."""
        state = self.reference.new_state()
        self.reference.prefill(prompt, state)
        at = self.interpreter.new_buffers(capacity, logits=True)
        take_over(at, self.model.config, state, token)
        return at, state

    def cycles(self, at: Buffers) -> Cycles:
        return Cycles(self.model, self.interpreter.sms, at, self.interpreter.run)

    def generate(
        self, prompt: list[int], length: int, drafts: int = 0, oracle: Callable[[int, int], list[int]] | None = None
    ) -> tuple[list[int], Buffers, list[int]]:
        """-> tokens of a greedy answer, the buffers after it, how many tokens each cycle gave.

        oracle: drafts to verify after so many tokens of the answer and so many cycles, in place of the head's own.
        """
        at, _ = self.start(prompt[:-1], prompt[-1], capacity=len(prompt) + length + 2 * MAX_ROWS)
        cycles, out, kept = self.cycles(at), [], []
        while len(out) < length:
            given = oracle(len(out), len(kept)) if oracle else None
            tokens = cycles.cycle(drafts, given)
            out += tokens
            kept.append(len(tokens))
        return out, at, kept


def load(path: Path, arithmetic: Arithmetic, draft_rows: int | None = DRAFT_ROWS) -> Small:
    file = ModelFile.open(path)
    model = KernelModel.from_file(file, draft_rows)
    reference = HybridModel.load(file, dtype=arithmetic.dtype, draft_rows=draft_rows)
    weights = Weights(file, model, arithmetic.dtype)
    return Small(file, model, reference, Interpreter(model, weights, arithmetic, SMS))


MakeSmall = Callable[[str, Arithmetic], Small]


def small_model_maker(folder: Path) -> MakeSmall:
    """make_small(size, arithmetic): a small model of that size's ratios, or "plain": a very small one in float32."""
    made: dict[tuple[str, Arithmetic], Small] = {}

    def make(name: str, arithmetic: Arithmetic) -> Small:
        if (name, arithmetic) not in made:
            path = folder / f"{name}.gguf"
            if name == "plain" and not path.exists():
                write_tiny_model(path, seed=3)
            elif not path.exists():
                preset = small_preset(name)
                write_random_model(path, preset, mixed_types(preset), synthetic_metadata(preset, 0), SEEDS[name])
            made[name, arithmetic] = load(path, arithmetic)
        return made[name, arithmetic]

    return make


def prompt_of(length: int) -> list[int]:
    return [(37 * i * i + 11 * i + 5) % 300 for i in range(length)]
