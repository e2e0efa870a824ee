"""What runs a model: the decode kernel on a GPU, with torch there for prompts, or torch on the CPU.

Chosen once, at load. Nothing else chooses: whoever wants the CPU hides the GPU from CUDA (``CUDA_VISIBLE_DEVICES=``).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import time
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from server.gguf.on_device import FileOnDevice
from server.gguf.reader import ModelFile
from server.host_memory import available_memory
from server.kernel.buffers import MAX_DRAFTS, MAX_ROWS
from server.kernel.compile import compile_kernel, require_compiler
from server.kernel.cycle import Cycles
from server.kernel.errors import KernelCompileError, NoGpu, UnsupportedByKernel
from server.kernel.gpu import GpuKernel, require_gpu
from server.kernel.memory import memory_plan
from server.kernel.model import KernelModel
from server.kernel.prompt_matrices import TileMatrices, scratch_size
from server.kernel.sequence import take_over
from server.kernel.source import find_arch
from server.model.config import ModelConfig
from server.model.finite import check_numbers
from server.model.hybrid import HybridModel, draft_ids
from server.model.tokenizer import Tokenizer
from server.speculation.copies import LENGTHS
from server.speculation.launches import Launches

DRAFT_ROWS = 32768
"""Rows of the draft head: the first ids are the frequent ones. With the embedded model (16,384 ids) all of them
give 2.57 tokens a cycle at three drafts and 8,192 give 2.41; half of the head saves 0.2 ms a draft."""
GPU = torch.device("cuda")
GPU_DTYPE = torch.bfloat16
"""Of weights and activations of a prompt on a GPU."""
WORKING_BYTES = 2 << 30
"""On a GPU beside weights and sequences: the CUDA context, libraries, activations of a prompt's chunk."""
CACHE_SHARE = 4
"""Kept sequences get one of so many parts of the GPU memory that is free when the model has been loaded."""
HOST_SHARE = 8
"""What doesn't fit there gets one of so many parts of the host's free memory. Page-locked pieces take up to twice their
size."""
KEPT_STATES = 8
"""Recurrent states that there must be room for beside the rows of a kept sequence."""
LEAST_CONTEXT, CONTEXT_STEP = 4096, 1024
"""Tokens: with less a GPU isn't worth it; and what a context that the memory limits is a multiple of."""
FIRST, CHUNK = 64, 256
"""Tokens of the first prefill, which sets up libraries, and of the measured one."""


@dataclass(frozen=True)
class Choice:
    """kernel: the model as the decode kernel runs it; None: torch on the CPU. text: what runs and why, one line.
    context: tokens that a sequence may have, where the GPU's memory holds no more; None: the model's whole context."""

    kernel: KernelModel | None
    text: str
    context: int | None = None
    resident: bool = True
    """Whether the matrices are on the GPU in 16 bits too, for prompts; else they are made of the kernel's tiles."""


class TooLittleGpuMemory(Exception):  # noqa: N818
    """The model doesn't fit into the GPU's memory. str() has the numbers."""


@dataclass(frozen=True)
class GpuMemory:
    """Bytes that a model takes on a GPU."""

    kernel: int
    """Weights as tiles, and the buffers of launches at the whole context."""
    prefill: int
    """The weights in 16 bits, for prompts, or one matrix at a time."""
    sequence: int
    """A sequence of the whole context, as prompts leave it."""
    kept: int
    """The same once more, as the cache keeps it, with some states."""
    working: int

    @property
    def total(self) -> int:
        return self.kernel + self.prefill + self.sequence + self.kept + self.working


def choose(file: ModelFile, *, make: bool = False) -> Choice:
    """What would run this model here. Raises ModelFileError for a file that nothing runs.

    make: compile the kernel too, as a load does (seconds, the first time): a choice of the kernel stands then.
    """
    try:
        require_gpu()
        require_compiler()
        require_triton()
        ids = _draft_ids(file, Tokenizer.from_file(file).end_tokens)
        model = KernelModel.from_file(file, len(ids))
        card, free = _card()
        arch, sms = find_arch(card.major, card.minor), card.multi_processor_count
        whole = model.config.context_length
        context, resident = _context_that_fits(file, model, sms, free, resident=True), True
        if context < whole:
            context, resident = _context_that_fits(file, model, sms, free, resident=False), False
        least = min(LEAST_CONTEXT, whole)
        if context < least:
            needed = _words(gpu_memory(file, model, sms, least, resident=False))
            raise TooLittleGpuMemory(
                f"on {card.name} a context of {least} tokens needs {needed}, and {_gigabytes(free)} are free"
            )
        if make:
            for tiles in (1, 2):
                compile_kernel(model, sms, arch, tiles)
    except (NoGpu, KernelCompileError, UnsupportedByKernel, TooLittleGpuMemory) as error:
        return Choice(None, f"torch on the CPU: {' '.join(str(error).split())}")
    holds = f"a context of {context} tokens" + ("" if context == whole else f", of the model's {whole}, fits")
    needed = _words(gpu_memory(file, model, sms, context, resident=resident))
    text = f"decode kernel on {card.name}: {holds}: {needed}, {_gigabytes(free)} free"
    return Choice(model, text, None if context == whole else context, resident)


def _context_that_fits(file: ModelFile, model: KernelModel, sms: int, free: int, *, resident: bool) -> int:
    """The model's whole context, or as many times `CONTEXT_STEP` tokens as so many bytes hold; perhaps 0."""

    def needed(context: int) -> int:
        return gpu_memory(file, model, sms, context, resident=resident).total

    whole = model.config.context_length
    if needed(whole) <= free:
        return whole
    return CONTEXT_STEP * bisect_right(
        range(1, whole // CONTEXT_STEP + 1), free, key=lambda n: needed(n * CONTEXT_STEP)
    )


def require_triton() -> None:
    """Raises KernelCompileError where the kernels that compute prompts can't be made, with what to install."""
    if importlib.util.find_spec("triton") is None:
        raise KernelCompileError(
            "prompts need Triton there, which comes with PyTorch for CUDA on Linux, and is missing"
        )
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise KernelCompileError("Triton, which computes prompts there, needs a C compiler: install gcc, or set CC")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise KernelCompileError("Triton, which computes prompts there, needs Python's headers: install python3-dev")


def _card() -> tuple[Any, int]:
    """The GPU, and its free bytes. Raises NoGpu for one that others have for themselves, that is full or broken."""
    try:
        return torch.cuda.get_device_properties(), torch.cuda.mem_get_info()[0]
    except RuntimeError as error:
        raise NoGpu(f"the GPU can't be used: {str(error).splitlines()[0]}") from error


def gpu_memory(file: ModelFile, model: KernelModel, sms: int, context: int, *, resident: bool = True) -> GpuMemory:
    """What a model takes on a GPU of so many SMs, with sequences of up to `context` tokens. Asks the header alone.

    resident: see `Choice`.
    """
    c = model.config
    plan = memory_plan(model, sms, _capacity(context))
    logits = 4 * MAX_ROWS * c.vocab
    sizes = [prod(info.shape) for info in file.tensors.values()]
    attention = sum(not recurrent for recurrent in c.recurrent) + c.mtp
    rows = 2 * attention * c.kv_heads * c.head_dim * context
    return GpuMemory(
        kernel=plan.total + logits,
        prefill=GPU_DTYPE.itemsize * (sum(sizes) + model.draft_rows * c.hidden if resident else scratch_size(model)),
        sequence=GPU_DTYPE.itemsize * rows * 3 // 2 + 2 * plan.memories,  # keys and values grow by half
        kept=GPU_DTYPE.itemsize * rows + KEPT_STATES * plan.memories,
        working=WORKING_BYTES
        + (6 * max(sizes) if resident else 0),  # a matrix while it is loaded: float32, and 16 bits
    )


def load_on_gpu(file: ModelFile, choice: Choice, end_tokens: Collection[int]) -> Launches:
    """The model on the GPU that was chosen. end_tokens: the tokenizer's, which drafts may hold.

    Raises ModelFileError, KernelFault, KernelCompileError, UnsupportedByKernel.
    """
    assert choice.kernel is not None
    kernel = GpuKernel.from_file(file, choice.kernel, GPU, _draft_ids(file, end_tokens) or None)
    kernel.prepare()
    tiles = None if choice.resident else TileMatrices(choice.kernel, kernel.weights, GPU_DTYPE)
    model = HybridModel.load(FileOnDevice(file, GPU), GPU, GPU_DTYPE, DRAFT_ROWS, end_tokens, matrices=tiles)
    torch.cuda.empty_cache()
    at = kernel.new_buffers(_capacity(choice.context or model.config.context_length), logits=True)
    return Launches(model, Cycles(choice.kernel, kernel.sms, at, kernel.run))


def warm_up_gpu(launches: Launches) -> float:
    """Prefills, and launches of every depth, so that no request waits for what happens once -> tokens per second of
    prefill. Raises NotNumbers."""
    model, cycles = launches.model, launches.cycles
    length = max(2, min(FIRST + CHUNK, model.config.context_length - 1))
    ids = [i % model.config.vocab for i in range(length)]
    first = min(FIRST, length // 2)
    state = model.new_state()
    model.prefill(ids[:first], state)
    model.wait()
    began = time.perf_counter()
    hidden = model.prefill(ids[first:], state)
    model.wait()
    rate = (length - first) / (time.perf_counter() - began)
    check_numbers(model.logits(hidden[-1:]))
    own = [(drafts, None) for drafts in range(MAX_DRAFTS + 1 if model.config.mtp else 1)]
    for drafts, given in [*own, *((0, ids[:length]) for length in LENGTHS)]:
        for run in (cycles.cycle, cycles.logits):
            take_over(cycles.at, model.config, state, ids[0])
            run(drafts, given)
    return rate


def gpu_cache_bytes(model: HybridModel) -> int:
    """What kept sequences may take on the GPU that the model has been loaded on."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(model.device)[0]
    return free // CACHE_SHARE


def host_cache_bytes() -> int:
    """What kept sequences may take of the host's memory, beside a GPU's."""
    return available_memory() // HOST_SHARE


def _draft_ids(file: ModelFile, end_tokens: Collection[int]) -> list[int]:
    config = ModelConfig.from_file(file)
    return draft_ids(config.vocab, DRAFT_ROWS, end_tokens) if config.mtp else []


def _capacity(context: int) -> int:
    return context + MAX_ROWS


def _words(memory: GpuMemory) -> str:
    parts = (
        (memory.kernel, "for the kernel's weights and buffers"),
        (memory.prefill, "for prompts' weights"),
        (memory.sequence, "for a sequence"),
        (memory.kept, "for what is kept"),
        (memory.working, "to work with"),
    )
    return f"{_gigabytes(memory.total)} ({', '.join(f'{_gigabytes(size)} {what}' for size, what in parts)})"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
