"""What the random weights of each tensor look like: scales that keep a deep model's activations and logits alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod, sqrt
from zlib import crc32

import numpy as np
import numpy.typing as npt

from server.gguf.types import TensorType, block_size, row_bytes
from server.synth.blocks import Bytes, random_blocks
from server.synth.mixes import part_of
from server.synth.presets import Preset, tensor_shapes

PIECE_BYTES = 4 << 20
"""A piece of a tensor is made at once, and has random numbers of its own; it fits into a core's cache."""

LOGIT_SPREAD = 2.5
"""Standard deviation of the logits, about."""
FULL_LAYERS = {False: 8, True: 2}
"""Up to so many layers, each adds to the residual at full size; by whether the embedding, from which the residual
starts, is the output matrix too and therefore small."""
DECAY_RATES = (0.06, 15.0)
TIME_STEPS = (0.001, 0.1)
"""Ranges of -ssm_a and of softplus(ssm_dt.bias), both filled evenly on a logarithmic scale: what state-space models
are initialised with. A head then forgets within one token to within ten thousand."""


@dataclass(frozen=True)
class RandomTensor:
    """One tensor, to be made piece by piece in any order; the same seed gives the same bytes."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    spread: float
    """Standard deviation of a matrix's weights."""
    seed: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * row_bytes(self.type, self.shape[-1])

    @property
    def pieces(self) -> int:
        return -(-self.nbytes // self._piece_bytes)

    @property
    def _piece_bytes(self) -> int:
        size = block_size(self.type)[1]
        return PIECE_BYTES // size * size

    def fill(self, piece: int, data: Bytes) -> None:
        """Write piece number `piece` into its place in `data`, uint8 [nbytes]."""
        random = np.random.Generator(np.random.SFC64([self.seed, crc32(self.name.encode()), piece]))
        place = data[piece * self._piece_bytes : (piece + 1) * self._piece_bytes]
        part, _ = part_of(self.name)
        if len(self.shape) == 1:
            place[:] = _vector(part, self.shape[0], random).view(np.uint8)
        else:
            count = len(place) // block_size(self.type)[1]
            place[:] = random_blocks(self.type, count, self.spread, random).reshape(-1)


def random_tensors(preset: Preset, types: Mapping[str, TensorType], seed: int) -> list[RandomTensor]:
    """The model's tensors in the order of the file. `types`: of every one, as `mix_types` gives them or any others."""
    return [
        RandomTensor(name, types[name], shape, matrix_spread(part_of(name)[0], shape[-1], preset), seed)
        for name, shape in tensor_shapes(preset).items()
    ]


def matrix_spread(part: str, columns: int, preset: Preset) -> float:
    """Standard deviation of a matrix's weights.

    Outputs are as large as inputs, with three exceptions. The more layers add to the residual, the less each of them
    adds: otherwise a deep model of random weights is chaotic, and rounding alone changes its answers. The output
    matrix sets the size of the logits. An embedding that is the output matrix too is thereby small beside what the
    layers add to it, so a token doesn't simply predict itself.
    """
    if part == "output" or (part == "token_embd" and preset.tied):
        return LOGIT_SPREAD / sqrt(columns)
    if part == "token_embd":
        return 1.0
    if part in ("attn_output", "ssm_out", "ffn_down"):
        return min(1.0, sqrt(FULL_LAYERS[preset.tied] / preset.layers)) / sqrt(columns)
    return 1 / sqrt(columns)


def _vector(part: str, size: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    match part:
        case "ssm_a":
            x = -_evenly(*DECAY_RATES, size, random)
        case "ssm_dt.bias":
            x = np.log(np.expm1(_evenly(*TIME_STEPS, size, random)))  # the inverse of softplus
        case _:
            x = random.uniform(0.6, 1.4, size)  # a norm's weights
    return x.astype(np.float32)


def _evenly(low: float, high: float, size: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """One number in each of `size` equal parts of the logarithmic scale, in random order."""
    places = (random.permutation(size) + random.random(size)) / size
    return low * np.exp(places * log(high / low))
