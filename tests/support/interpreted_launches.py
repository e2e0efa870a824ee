"""Launches that the interpreter runs: what answers do with a kernel needs no GPU."""

from collections.abc import Callable, Sequence
from typing import Any

from small_models import Small
from torch import Tensor

from server.kernel.cycle import Cycles
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers
from server.speculation.launches import Launches


class OracleCycles(Cycles):
    """The host gives the drafts: the true continuation, wrong from row ``right`` on.

    truth: what follows the prompt, the first token (which no launch makes) included. done: tokens of it so far.
    """

    truth: Sequence[int] = ()
    right = 0
    done: Callable[[], int]

    def _drafts(self, depth: int) -> list[int] | None:
        true = self.truth[self.done() : self.done() + depth]
        if len(true) < depth or not depth:
            return None
        return [token if row < self.right else (token + 1) % self.model.config.vocab for row, token in enumerate(true)]

    def cycle(self, drafts: int, given: Sequence[int] | None = None) -> list[int]:
        return super().cycle(drafts, self._drafts(drafts))

    def logits(self, drafts: int, given: Sequence[int] | None = None) -> tuple[list[int], Tensor]:
        return super().logits(drafts, self._drafts(drafts))


def interpreted(small: Small, capacity: int = 256, kind: type[Cycles] = Cycles, run: Any = None) -> Launches:
    """run: in place of the interpreter's."""
    at = small.interpreter.new_buffers(capacity, logits=True)
    cycles = kind(small.model, small.interpreter.sms, at, run or small.interpreter.run)
    return Launches(small.reference, cycles)


def counted(small: Small, found: list[Plan]) -> Callable[[Plan, Buffers], None]:
    """The interpreter, remembering the plans that it ran."""

    def run(plan: Plan, at: Buffers) -> None:
        found.append(plan)
        small.interpreter.run(plan, at)

    return run
