"""A kernel that is the interpreter, on a small model: the benchmark's own doings need no GPU."""

from dataclasses import dataclass

from small_models import Small

from bench.kernel.card import Card
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers

CARD = Card("Made-up GPU", 7, 1.0, "13.0")


@dataclass
class InterpretedKernel:
    """Remembers the counts that each launch found, and how many rows and drafts it had."""

    small: Small
    model: KernelModel
    sms: int
    found: list[tuple[int, int, list[int]]]

    def new_buffers(self, capacity: int, logits: bool = False) -> Buffers:
        return self.small.interpreter.new_buffers(capacity, logits)

    def run(self, plan: Plan, at: Buffers) -> None:
        self.found.append((plan.rows, plan.drafts, at["counts"].tolist()))
        self.small.interpreter.run(plan, at)

    def launch(self, plan: Plan, at: Buffers) -> None:
        self.run(plan, at)

    def wait(self) -> None:
        pass
