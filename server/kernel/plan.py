"""The plan of a launch: the MTP head's rows and drafts, then the trunk over the verified rows, and what is kept.

The draft part comes first. What it needs is there when a launch begins (the tokens that the last one kept, and their
hidden rows), so the first cycle after a prompt drafts too, no draft is made behind the end of an answer, accepted
tokens reach the host without waiting for further drafts, and a sampled cycle, whose tokens the host chooses from the
logits, is one launch as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server.kernel.buffers import MAX_DRAFTS, MAX_ROWS
from server.kernel.build import Builder
from server.kernel.instructions import Instruction, WeightPhase
from server.kernel.model import KernelModel
from server.kernel.tiles import Strip


@dataclass(frozen=True)
class Plan:
    """An ordered list of instructions for `sms` SMs.

    rows: verified rows T = 1 + n, of which the first is the newest token. drafts: steps of the MTP head (0: it only
    catches up). The drafts to verify are the head's when `rows` = 1 + `drafts`, or those that the host gives.
    """

    model: KernelModel
    sms: int
    rows: int
    drafts: int
    logits: bool
    instructions: tuple[Instruction, ...]
    carried: Mapping[str, str]
    """What a launch finds in the buffers that are kept, and leaves there: buffer -> value."""

    @property
    def trunk(self) -> tuple[Instruction, ...]:
        """From the embedding of the verified rows on."""
        return self.instructions[self._trunk_start :]

    @property
    def draft(self) -> tuple[Instruction, ...]:
        return self.instructions[: self._trunk_start]

    @property
    def _trunk_start(self) -> int:
        return next(i for i, instruction in enumerate(self.instructions) if instruction.name == "embed")

    @property
    def barriers(self) -> int:
        return sum(1 for instruction in self.instructions if instruction.waits)

    @property
    def weight_phases(self) -> tuple[WeightPhase, ...]:
        return tuple(i for i in self.instructions if isinstance(i, WeightPhase))


def build_plan(model: KernelModel, sms: int, rows: int, drafts: int = 0, *, logits: bool = False) -> Plan:
    """The plan of one kind of launch. `logits`: all logits of the verified rows are written, for sampled requests.

    Raises ValueError for rows or drafts out of bounds, or drafts from a model without an MTP head.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"a launch verifies 1 to {MAX_ROWS} rows, not {rows}")
    if not 0 <= drafts <= MAX_DRAFTS or (drafts and not model.config.mtp):
        most = MAX_DRAFTS if model.config.mtp else 0
        raise ValueError(f"a launch of this model makes 0 to {most} drafts, not {drafts}")
    if sms < 1:
        raise ValueError(f"a plan needs at least one SM, not {sms}")
    builder = Builder(model, sms, rows, drafts, logits)
    builder.build()
    return Plan(model, sms, rows, drafts, logits, tuple(builder.instructions), builder.carried())


def streamed_strips(model: KernelModel) -> tuple[Strip, ...]:
    """Every strip that launches of a model stream, once: the trunk's, the output matrix, the MTP block's with its
    rows of the output matrix."""
    plan = build_plan(model, 1, 1, 1 if model.config.mtp else 0)
    return tuple(dict.fromkeys(strip for phase in plan.weight_phases for strip in phase.strips))
