"""Whether speculation changes nothing: without this flag no speed counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.kernel.launches import Kernel
from server.kernel.buffers import MAX_ROWS
from server.kernel.cycle import Cycles
from server.kernel.device import DeviceBuffers
from server.kernel.sequence import Buffers, set_counts

START = 100
"""The first token of the answer; nothing stands before it."""
DEPTH = 4
"""Drafts of the MTP head."""
ORACLE_DEPTHS = (7, MAX_ROWS - 1)


@dataclass(frozen=True)
class Parity:
    """tokens: of the greedy answer. different: how many of these are. same: with the MTP head's own drafts (None
    without a head). per_cycle: tokens a cycle with them. counts: with drafts from an oracle, every accepted count
    came out as it must, and the same tokens. cycle_ms: of a cycle of one row with the host's side, by the host's
    clock."""

    tokens: int
    different: int
    same: bool | None
    per_cycle: float
    counts: bool
    cycle_ms: float

    @property
    def holds(self) -> bool:
        return self.counts and self.same is not False

    def lines(self) -> list[tuple[str, str]]:
        """Facts: name and text."""
        own = {True: "the same tokens", False: "OTHER TOKENS", None: "not tried: the model has no MTP head"}[self.same]
        return [
            ("parity", "yes" if self.holds else "NO"),
            ("greedy answer", f"{self.tokens} tokens, {self.different} different ones"),
            (f"with {DEPTH} drafts of the MTP head", f"{own}, {self.per_cycle:.2f} tokens a cycle"),
            ("with an oracle's drafts", "every accepted count as given" if self.counts else "WRONG accepted counts"),
            ("a cycle of one row with the host's side", f"{self.cycle_ms:.3f} ms by the host's clock"),
        ]


def begin(at: Buffers, token: int) -> None:
    """A sequence without anything before its first token."""
    for x in at.values():
        x.zero_()
    at["accepted"][0] = token
    set_counts(at, length=0, fold=0, behind=1, external=0)
    if isinstance(at, DeviceBuffers):
        at.last_rows = 0


def check_parity(kernel: Kernel, tokens: int) -> Parity:
    """Greedy answers of at least `tokens` tokens: without drafts, with the head's, with an oracle's."""
    start = min(START, kernel.model.config.vocab - 1)
    at = kernel.new_buffers(tokens + 8 * MAX_ROWS)
    begin(at, start)
    cycles = Cycles(kernel.model, kernel.sms, at, kernel.run)
    truth: list[int] = []
    clocks = [time.perf_counter()]
    while len(truth) < tokens + 2 * MAX_ROWS:
        truth += cycles.cycle(0)
        clocks.append(time.perf_counter())
    passed = sorted(after - before for before, after in pairwise(clocks))
    same, per_cycle = None, 1.0
    if kernel.model.config.mtp:
        begin(at, start)
        text: list[int] = []
        turns = 0
        while len(text) < tokens:
            text += cycles.cycle(DEPTH)
            turns += 1
        same, per_cycle = text[:tokens] == truth[:tokens], len(text) / turns
    counts = all(_oracle(cycles, at, start, truth, depth, tokens, kernel) for depth in ORACLE_DEPTHS)
    return Parity(tokens, len(set(truth[:tokens])), same, per_cycle, counts, passed[len(passed) // 2] * 1e3)


def _oracle(
    cycles: Cycles, at: Buffers, start: int, truth: Sequence[int], depth: int, tokens: int, kernel: Kernel
) -> bool:
    """Drafts of which 0, 1, ..., depth are right, over and over, until the answer is `tokens` long."""
    begin(at, start)
    done, right = 0, 0
    while done < tokens:
        drafts = truth[done : done + depth]
        given = [t if row < right else (t + 1) % kernel.model.config.vocab for row, t in enumerate(drafts)]
        if cycles.cycle(0, given) != list(truth[done : done + right + 1]):
            return False
        done += right + 1
        right = (right + 1) % (depth + 1)
    return True
