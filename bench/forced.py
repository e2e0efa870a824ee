"""Answers whose tokens are given: whatever the model would say, the next token is the target's.

Drafts are accepted when they are the target's tokens, and everything is computed as for a model that answers so. It
says what an answer takes without a model that gives it. On a GPU the host adds about 0.1 ms to each cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from server.executor import DRAFT_ROWS, GPU, GPU_DTYPE, warm_up_gpu
from server.gguf.on_device import FileOnDevice
from server.gguf.reader import ModelFile
from server.kernel.buffers import MAX_ROWS
from server.kernel.cycle import Cycles
from server.kernel.gpu import GpuKernel
from server.kernel.model import KernelModel
from server.kernel.sequence import settle
from server.model.hybrid import HybridModel, draft_ids
from server.model.linear import can_halve
from server.model.state import SequenceState
from server.model.tokenizer import Tokenizer
from server.request import SamplingParams
from server.speculation.copies import Copies
from server.speculation.decoder import Decoder, common
from server.speculation.depth import DepthController
from server.speculation.drafter import MtpDrafter
from server.speculation.launches import LaunchDecoder, Launches
from server.speculation.sampling import Sampler
from server.threads.chooser import physical_cores


class ForcedSampler(Sampler):
    """Looks for the best token as a greedy one does, and then takes the target's."""

    def __init__(self, target: Sequence[int], vocabulary: int) -> None:
        super().__init__(SamplingParams(), (), vocabulary)
        self._target = target
        self._made = 0

    def choose(self, logits: Tensor) -> int:
        super().choose(logits)
        return self._target[self._made]

    def accept(self, token: int) -> None:
        self._made += 1


class ForcedCycles(Cycles):
    """Launches after each of which the host puts the target's tokens in the place of those that the device accepted.

    target: all tokens of the answer; None leaves the device's. made: tokens of it so far.
    """

    target: Sequence[int] | None = None
    made = 0

    def force(self, target: Sequence[int] | None) -> None:
        """For the next answer, whose first token comes from the prompt's logits."""
        self.target, self.made = target, 1

    def cycle(self, drafts: int, given: Sequence[int] | None = None) -> list[int]:
        tokens = super().cycle(drafts, given)
        if self.target is None:
            return tokens
        rows = 1 + (drafts if given is None else len(given))
        ahead = self.target[self.made : self.made + rows]
        drafted: list[int] = self.at["tokens"][1:rows].tolist()
        forced = list(ahead[: 1 + common(ahead, drafted)])
        settle(self.at, forced, rows)
        self.made += len(forced)
        return forced


class Machinery(Protocol):
    """What decodes: in torch, or launches of the kernel."""

    @property
    def model(self) -> HybridModel: ...

    def decoder(
        self, state: SequenceState, target: Sequence[int] | None, controller: DepthController, copies: Copies | None
    ) -> Decoder | LaunchDecoder:
        """target: the answer that is forced; None for the model's own, greedy."""


class InTorch:
    """On the CPU."""

    def __init__(self, model: HybridModel) -> None:
        self.model = model

    def decoder(
        self, state: SequenceState, target: Sequence[int] | None, controller: DepthController, copies: Copies | None
    ) -> Decoder:
        sampler = _sampler(target, self.model.config.vocab)
        drafter = MtpDrafter(self.model, state) if self.model.config.mtp else None
        return Decoder(self.model, state, sampler, (), drafter, controller, copies=copies)


class OnKernel:
    """launches: their cycles are ForcedCycles."""

    def __init__(self, model: HybridModel, cycles: ForcedCycles) -> None:
        self.model = model
        self._cycles = cycles
        self._launches = Launches(model, cycles)

    def decoder(
        self, state: SequenceState, target: Sequence[int] | None, controller: DepthController, copies: Copies | None
    ) -> LaunchDecoder:
        self._cycles.force(target)
        sampler = _sampler(target, self.model.config.vocab)
        return LaunchDecoder(self._launches, state, sampler, (), controller, copies=copies)


def _sampler(target: Sequence[int] | None, vocabulary: int) -> Sampler:
    return Sampler(SamplingParams(), (), vocabulary) if target is None else ForcedSampler(target, vocabulary)


def on_cpu(file: ModelFile, tokenizer: Tokenizer) -> InTorch:
    torch.set_num_threads(physical_cores())
    half = can_halve("cpu", torch.float32)
    return InTorch(HybridModel.load(file, draft_rows=DRAFT_ROWS, draft_also=tokenizer.end_tokens, half_weights=half))


def on_gpu(file: ModelFile, context: int) -> OnKernel:
    """context: tokens of a sequence at most. Raises NoGpu, UnsupportedByKernel, KernelCompileError, KernelFault."""
    model = HybridModel.load(FileOnDevice(file, GPU), GPU, GPU_DTYPE, DRAFT_ROWS)
    ids = draft_ids(model.config.vocab, DRAFT_ROWS) if model.config.mtp else []
    kernel = GpuKernel.from_file(file, KernelModel.from_file(file, len(ids)), GPU, ids or None)
    kernel.prepare()
    at = kernel.new_buffers(context + MAX_ROWS, logits=True)
    cycles = ForcedCycles(kernel.model, kernel.sms, at, kernel.run)
    machinery = OnKernel(model, cycles)
    warm_up_gpu(Launches(model, cycles))
    return machinery
