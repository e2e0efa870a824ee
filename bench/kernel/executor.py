"""The torch executor on the same model: what the decode kernel is instead of."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from bench.figures import Figure, Section
from server.gguf.on_device import FileOnDevice
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.state import SequenceState
from server.model.weights import loaded_bytes

DTYPE = torch.bfloat16
WARM_UPS = 3
SPARE = 6 << 30
"""Bytes that loading and decoding need beside the weights, at most."""


def fits(file: ModelFile, half: bool, device: torch.device, beside: int = 0) -> tuple[bool, str]:
    """Whether the weights in float32, or with `half` in 16 bits, fit beside what is there already and so many bytes
    that are to come, and a few words."""
    needed = loaded_bytes(file, half) + SPARE + beside
    if device.type != "cuda":
        return True, f"{needed / 1e9:.0f} GB"
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    return needed <= free, f"{needed / 1e9:.0f} GB needed, {free / 1e9:.0f} GB free"


def executor_section(file: ModelFile, device: torch.device, context: int, rows: Sequence[int], runs: int) -> Section:
    """Decodes of so many rows with their logits and best tokens, by the host's clock; the context is made up."""
    section = Section(f"The torch executor, {str(DTYPE).removeprefix('torch.')}, context {context}")
    enough, words = fits(file, half=True, device=device)
    if not enough:
        section.facts.append(("not measured", f"the weights don't fit beside the kernel's: {words}"))
        return section
    started = time.perf_counter()
    model = HybridModel.load(FileOnDevice(file, device), device, DTYPE, draft_rows=1)
    _finish(device)
    section.facts.append(("loaded", f"in {time.perf_counter() - started:.1f} s"))
    state = made_up_state(model, context)
    for count in rows:
        samples = [_decode(model, state, count, device) for _ in range(WARM_UPS + runs)][WARM_UPS:]
        section.figures.append(Figure(f"T={count}", "ms", tuple(samples)))
    return section


@torch.inference_mode()
def made_up_state(model: HybridModel, length: int) -> SequenceState:
    """As after so many tokens, which nobody has computed."""
    state, c = model.new_state(), model.config
    generator = torch.Generator(model.device).manual_seed(1)

    def rows() -> Tensor:
        shape = (length, c.kv_heads, c.head_dim)
        return torch.randn(shape, generator=generator, device=model.device, dtype=model.dtype) / 2

    for cache in state.attention:
        cache.write(0, rows(), rows())
    state.memory.normal_(0, 0.05, generator=generator)
    for window in state.conv:
        window.normal_(0, 0.5, generator=generator)
    state.tokens = [0] * length
    return state


def _decode(model: HybridModel, state: SequenceState, rows: int, device: torch.device) -> float:
    ids = [(37 * row + 5) % model.config.vocab for row in range(rows)]
    _finish(device)
    started = time.perf_counter()
    model.logits(model.decode(ids, state)).argmax(-1).tolist()
    passed = time.perf_counter() - started
    state.rollback(0)
    return passed * 1e3


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
