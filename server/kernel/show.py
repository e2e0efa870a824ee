"""Prints a plan: instructions by kind with their bytes and the least time these can take, memory, balance.

python -P -m server.kernel.show --preset 27b --rows 5 --drafts 4
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

from server.kernel.check import check
from server.kernel.errors import UnsupportedByKernel
from server.kernel.instructions import Instruction, WeightPhase
from server.kernel.memory import memory_plan
from server.kernel.model import KernelModel, preset_model
from server.kernel.plan import Plan, build_plan
from server.kernel.tiles import bytes_by_sm, shared_groups
from server.synth.errors import SynthError
from server.synth.mixes import find_mix
from server.synth.presets import find_preset

H200_SMS = 132
H200_BANDWIDTH = 4600.0
"""GB/s of a read stream through shared-memory rings, measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m server.kernel.show", description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="27b", help="dimensions: tiny, 0.8b, 2b, 4b, 9b, 27b (default %(default)s)")
    parser.add_argument("--mix", default="q4_k_m", help="types of the tensors, as `draftline synth` knows them")
    parser.add_argument("--rows", type=int, default=5, help="verified rows, 1 to 16")
    parser.add_argument("--drafts", type=int, default=4, help="drafts of the MTP head, 0 to 7")
    parser.add_argument("--draft-rows", type=int, default=32_768, help="rows of the draft head")
    parser.add_argument("--sms", type=int, default=H200_SMS)
    parser.add_argument("--context", type=int, default=4096, help="positions behind the rows")
    parser.add_argument("--bandwidth", type=float, default=H200_BANDWIDTH, help="GB/s (default: an H200's stream)")
    given = parser.parse_args(arguments)
    try:
        model = preset_model(find_preset(given.preset), find_mix(given.mix), given.draft_rows)
        plan = build_plan(model, given.sms, given.rows, given.drafts)
    except (SynthError, UnsupportedByKernel, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(describe(plan, given.context, given.bandwidth)))
    return 0


def describe(plan: Plan, context: int, bandwidth: float) -> Iterator[str]:
    """The lines of the report. bandwidth in GB/s."""
    yield f"{plan.rows} rows, {plan.drafts} drafts, {plan.sms} SMs, {context} positions, {bandwidth:.0f} GB/s"
    yield ""
    yield "| part | instruction | count | weights MB | state MB | scratch MB | least µs each | least µs |"
    yield "|---|---|---|---|---|---|---|---|"
    for part, instructions in (("draft", plan.draft), ("trunk", plan.trunk)):
        for kind, found in by_kind(instructions).items():
            weights, scratch = (sum(getattr(i.cost, name) for i in found) for name in ("weights", "scratch"))
            total = sum(i.cost.memory_bytes(context) for i in found)
            least = total / bandwidth / 1e3
            yield (
                f"| {part} | {kind} | {len(found)} | {weights / 1e6:.1f} | {(total - weights) / 1e6:.1f} "
                f"| {scratch / 1e6:.1f} | {least / len(found):.2f} | {least:.0f} |"
            )
    yield ""
    for name, instructions in (("draft part", plan.draft), ("trunk", plan.trunk), ("launch", plan.instructions)):
        total = sum(i.cost.memory_bytes(context) for i in instructions)
        weights = sum(i.cost.weights for i in instructions)
        yield (
            f"{name}: {len(instructions)} instructions, {weights / 1e9:.3f} GB of weights, "
            f"{(total - weights) / 1e6:.0f} MB of states and caches, at least {total / bandwidth / 1e6:.3f} ms"
        )
    yield f"barriers: {plan.barriers}"
    yield from _balance(plan)
    findings = check(plan)
    yield f"checked: {len(findings)} findings" if findings else "checked: no finding"
    yield from (f"  {finding}" for finding in findings)
    yield ""
    yield from _memory(plan.model, plan.sms)


def by_kind(instructions: Sequence[Instruction]) -> dict[str, list[Instruction]]:
    """Instructions of a kind, the weight phases by the place that they have in a layer."""
    found: dict[str, list[Instruction]] = defaultdict(list)
    for instruction in instructions:
        kind = type(instruction).__name__
        if isinstance(instruction, WeightPhase):
            names = [m.tensor.removesuffix(".weight").split(".")[-1] for s in instruction.strips for m in s.matrices]
            kind += " " + " ".join(names)
        found[kind].append(instruction)
    return found


def _balance(plan: Plan) -> Iterator[str]:
    worst, name, sharers = 0.0, "", 1
    for phase in plan.weight_phases:
        shares = bytes_by_sm(phase.strips, phase.ranges)
        spread = (max(shares) - min(shares)) * len(shares) / sum(shares)
        if spread > worst:
            worst, name = spread, phase.name
        for shared in shared_groups(phase.strips, phase.ranges):
            sharers = max(sharers, 1 + len(shared.contributors))
    yield f"balance: SMs differ by {worst:.2%} of their mean at most ({name}); a group has {sharers} SMs at most"


def _memory(model: KernelModel, sms: int) -> Iterator[str]:
    yield "| positions | weights | embedding | memories | rings | keys and values | scratch | total, MB |"
    yield "|---|---|---|---|---|---|---|---|"
    for capacity in (4096, 32_768, 131_072):
        m = memory_plan(model, sms, capacity)
        parts = (m.weights, m.embedding, m.memories, m.rings, m.caches, m.scratch, m.total)
        yield f"| {capacity} | " + " | ".join(f"{part / 1e6:.0f}" for part in parts) + " |"


if __name__ == "__main__":
    sys.exit(main())
