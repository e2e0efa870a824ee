"""How near the kernel's logits are to float32 on the same dequantised weights, along a given text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from bench.figures import Figure, Section, Target
from bench.kernel.executor import fits
from bench.kernel.launches import Kernel
from bench.kernel.parity import begin
from server.gguf.on_device import FileOnDevice
from server.gguf.reader import ModelFile
from server.kernel.arithmetic import Arithmetic
from server.kernel.buffers import MAX_ROWS
from server.kernel.cycle import Launch
from server.kernel.interpreter import Interpreter
from server.kernel.model import KernelModel
from server.kernel.plan import build_plan
from server.kernel.sequence import Buffers, set_counts, settle
from server.kernel.weights import Weights
from server.model.hybrid import HybridModel

WINDOW = 512
"""Positions that are processed behind each other; then a new sequence begins."""
TOP_1 = Target("≥", 99.0, reach=99.6)
KL = Target("≤", 1.0, reach=0.3)
"""In 10⁻³ nats. Both are for a model with real weights, on 5,000 positions."""
ENOUGH = 5000
INTERPRETERS = 16 << 30
"""Bytes that these need at most beside a file's: one matrix at a time is dequantised."""

Logits = Callable[[Sequence[int]], Iterator[Tensor]]
"""Token ids -> the logits behind each of them, up to 16 rows [T, V] at a time; a block holds until the next one."""


class OnePlane(Arithmetic):
    """8 bits and one scale for each 32 activations, everywhere: without the second plane of the output matrix."""

    def left(self, x: Tensor, rounded: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass
class Agreement:
    """Sums over positions. kl: of the reference's distribution against the other one's, nats."""

    positions: int = 0
    same: int = 0
    kl: float = 0.0

    def add(self, reference: Tensor, found: Tensor) -> None:
        """Logits of the same positions, [T, V] each."""
        wanted = torch.log_softmax(reference.double(), -1)
        logs = torch.log_softmax(found.to(wanted.device).double(), -1)
        self.kl += float((wanted.exp() * (wanted - logs)).sum())
        self.same += int((reference.argmax(-1) == found.to(reference.device).argmax(-1)).sum())
        self.positions += len(reference)

    @property
    def top_1(self) -> float:
        """Per cent."""
        return 100 * self.same / self.positions

    @property
    def mean_kl(self) -> float:
        """10⁻³ nats."""
        return 1e3 * self.kl / self.positions


def launched_logits(model: KernelModel, sms: int, launch: Launch, at: Buffers) -> Logits:
    """From launches of 16 rows whose tokens are given, one after another as in an answer that the host samples."""
    plan_of = lru_cache(maxsize=None)(lambda rows: build_plan(model, sms, rows, 0, logits=True))

    def logits(ids: Sequence[int]) -> Iterator[Tensor]:
        begin(at, ids[0])
        for first in range(0, len(ids), MAX_ROWS):
            rows = len(ids[first : first + MAX_ROWS])
            given = torch.tensor(list(ids[first + 1 : first + rows]), dtype=at["given"].dtype)
            at["given"][: rows - 1] = given.to(at["given"].device)
            set_counts(at, external=1)
            launch(plan_of(rows), at)
            yield at["logits"][:rows]
            following = ids[first + 1 : first + rows + 1]
            if len(following) == rows:
                settle(at, following, rows)

    return logits


def reference_logits(model: HybridModel) -> Logits:
    def logits(ids: Sequence[int]) -> Iterator[Tensor]:
        hidden = model.prefill(ids, model.new_state())
        for first in range(0, len(ids), MAX_ROWS):
            yield model.logits(hidden[first : first + MAX_ROWS])

    return logits


def interpreted(kernel: Kernel, weights: Weights, arithmetic: Arithmetic) -> Logits:
    """The plan in torch."""
    interpreter = Interpreter(kernel.model, weights, arithmetic, kernel.sms)
    at = interpreter.new_buffers(WINDOW + MAX_ROWS, logits=True)
    return launched_logits(kernel.model, kernel.sms, interpreter.run, at)


def load_reference(file: ModelFile, device: torch.device) -> tuple[HybridModel | None, str]:
    """The model in float32, where it fits, and a few words."""
    enough, words = fits(file, half=False, device=device, beside=file.path.stat().st_size + INTERPRETERS)
    if not enough:
        return None, f"the plan in torch, float32, since HybridModel doesn't fit: {words}"
    model = HybridModel.load(FileOnDevice(file, device), device, torch.float32, draft_rows=1)
    return model, "HybridModel, float32"


@torch.inference_mode()
def compare(windows: Sequence[Sequence[int]], reference: Logits, others: dict[str, Logits]) -> dict[str, Agreement]:
    """All along the same windows of tokens, each a sequence of its own."""
    found = {name: Agreement() for name in others}
    for ids in windows:
        blocks = [logits(ids) for logits in others.values()]
        for wanted, *there in zip(reference(ids), *blocks, strict=True):
            for agreement, one in zip(found.values(), there, strict=True):
                agreement.add(wanted, one)
    return found


def accuracy_section(
    file: ModelFile,
    kernel: Kernel,
    reference: HybridModel | None,
    windows: Sequence[Sequence[int]],
    emulate: bool,
    device: torch.device,
) -> Section:
    """reference: None for the plan in torch. emulate: for models of random weights, whose bar is what 8-bit activations
    cost with one scale for each 32."""
    section = Section("Accuracy: logits against float32 on the same dequantised weights, every token given")
    at = kernel.new_buffers(WINDOW + MAX_ROWS, logits=True)
    others = {"the kernel": launched_logits(kernel.model, kernel.sms, kernel.run, at)}
    # Matrices are dequantised whenever they are used, so that any model fits.
    weights = Weights(file, kernel.model, torch.float32, device, keep=False)
    exact = interpreted(kernel, weights, Arithmetic()) if reference is None else reference_logits(reference)
    if emulate:
        for name, kind in ((ONE_PLANE, OnePlane), (AS_BUILT, Arithmetic)):
            others[name] = interpreted(kernel, weights, kind(int8=True, half_cache=True))
    found = compare(windows, exact, others)
    positions = found["the kernel"].positions
    section.facts.append(("positions", f"{positions} in {len(windows)} sequences"))
    if not emulate and positions < ENOUGH:
        section.facts.append(("too short", f"the bars are for {ENOUGH} positions"))
    bar = KL
    if emulate:
        emulated = found[ONE_PLANE].mean_kl
        bar = Target("≤", emulated, reach=emulated / 2)
    for name, agreement in found.items():
        ours = name == "the kernel"
        top_1 = TOP_1 if ours and not emulate else None
        section.figures += [
            Figure(f"top-1, {name}", "%", (agreement.top_1,), top_1),
            Figure(f"mean KL, {name}", "10⁻³ nats", (agreement.mean_kl,), bar if ours else None),
        ]
    return section


ONE_PLANE = "emulated: 8 bits, one scale for each 32"
AS_BUILT = "emulated: as the kernel rounds"
