"""Proves on a plan alone that a launch can't read what isn't there yet, forget a weight, or leave an SM behind.

Each finding names its rule:
- order: two SMs touch the same buffer, one of them writing, and no barrier stands between;
- unwritten, stale, unknown: a buffer is read before anything is in it, or when it holds another value; no such buffer;
- own: an instruction lets one SM read what another writes at the same time;
- coverage: an item (a tile, a slice, a part) is left out or done twice;
- streamed: a matrix or small tensor isn't read exactly as often as it must be, or by rows that it doesn't have;
- balance: SMs stream numbers of bytes too far apart;
- shared: a group of rows is spread over more SMs than allowed;
- ring: a ring is too short for the rows of two cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from server.kernel.buffers import MAX_ROWS, RING, buffers
from server.kernel.instructions import DeltaRule, Instruction, MtpInput, WeightPhase
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.tiles import bytes_by_sm, shared_groups


@dataclass(frozen=True)
class Finding:
    rule: str
    instruction: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.instruction}: {self.text}"


def check(plan: Plan, *, spread: float | None = None, sharers: int | None = None) -> list[Finding]:
    """Everything that is wrong with a plan.

    spread: how far the bytes of two SMs may differ in a weight phase of the trunk and the drafts, as a part of their
    mean; None: by one tile on either side of the mean. sharers: SMs that may share a group; None: any number.
    """
    return [
        *_check_order(plan),
        *_check_values(plan),
        *_check_coverage(plan),
        *_check_streamed(plan),
        *_check_balance(plan, spread),
        *_check_shared(plan, sharers),
        *_check_rings(plan),
    ]


def _check_order(plan: Plan) -> Iterator[Finding]:
    """An SM passes an instruction's barrier only after all SMs have finished what it waits for; launches follow each
    other. So instruction j is ordered after i when j or one before it waits for i or one after it."""
    place: dict[str, int] = {}
    ordered = -1  # everything up to here is finished everywhere
    readers: dict[str, int] = {}
    writers: dict[str, int] = {}
    for index, instruction in enumerate(plan.instructions):
        for wait in instruction.waits:
            if wait.after not in place:
                yield Finding("order", instruction.name, f"waits for {wait.after}, which doesn't come before it")
            else:
                ordered = max(ordered, place[wait.after])
        writes = {access.buffer: access.share for access in instruction.writes}
        for access in instruction.reads:
            last = writers.get(access.buffer, -1)
            if last > ordered:
                other = plan.instructions[last].name
                yield Finding("order", instruction.name, f"reads {access.buffer} while {other} may still write it")
            if access.buffer in writes and {access.share, writes[access.buffer]} not in ({"own"}, {"disjoint"}):
                yield Finding("own", instruction.name, f"an SM reads {access.buffer} while another one writes it")
        for buffer in writes:
            for what, last in (("writes", writers.get(buffer, -1)), ("reads", readers.get(buffer, -1))):
                if last > ordered:
                    other = plan.instructions[last].name
                    text = f"overwrites {buffer} while {other} may still {what[:-1]} it"
                    yield Finding("order", instruction.name, text)
        readers |= {access.buffer: index for access in instruction.reads}
        writers |= dict.fromkeys(writes, index)
        readers |= {access.buffer: index for access in instruction.writes if access.share == "handed"}
        place[instruction.name] = index


def _check_values(plan: Plan) -> Iterator[Finding]:
    known = buffers(plan.model, plan.sms, 1, plan.logits)
    holds = dict(plan.carried)
    for instruction in plan.instructions:
        for access in (*instruction.reads, *instruction.writes):
            if access.buffer not in known:
                yield Finding("unknown", instruction.name, f"there is no buffer {access.buffer}")
        for access in instruction.reads:
            if access.buffer not in holds:
                yield Finding("unwritten", instruction.name, f"reads {access.buffer}, which nothing wrote")
            elif holds[access.buffer] != access.value:
                text = f"reads {access.value!r} from {access.buffer}, which holds {holds[access.buffer]!r}"
                yield Finding("stale", instruction.name, text)
        holds |= {access.buffer: access.value for access in instruction.writes}
    for buffer, value in plan.carried.items():
        if holds[buffer] != value:
            yield Finding("stale", "end", f"leaves {holds[buffer]!r} in {buffer}, the next launch needs {value!r}")


def _check_coverage(plan: Plan) -> Iterator[Finding]:
    for instruction in plan.instructions:
        items = instruction.items
        if isinstance(instruction, WeightPhase):
            items = sum(strip.tiles for strip in instruction.strips)
        if len(instruction.ranges) != plan.sms:
            yield Finding("coverage", instruction.name, f"has ranges for {len(instruction.ranges)} of {plan.sms} SMs")
        at = 0
        for sm, share in enumerate(instruction.ranges):
            if share.start > share.stop:
                yield Finding("coverage", instruction.name, f"SM {sm} has the range {share}")
            elif share.start > at:
                yield Finding("coverage", instruction.name, f"no SM does item {at} (before SM {sm})")
            elif share.start < at:
                yield Finding("coverage", instruction.name, f"SM {sm} does item {share.start} again")
            at = max(at, share.stop)
        if at != items:
            yield Finding("coverage", instruction.name, f"ends with item {at} of {items}")


def expected_matrices(model: KernelModel, drafts: int) -> Counter[tuple[str, int]]:
    """(tensor, rows) that a launch streams, and how often: the trunk and the output matrix once, the MTP block once a
    step with its part of the output matrix; without drafts only what its keys and values need."""
    c, mtp = model.config, f"blk.{model.config.layers}."
    shapes = model.matrices()
    trunk = {name: rows for name, (rows, _) in shapes.items() if name.startswith("blk.") and not name.startswith(mtp)}
    expected = Counter({(name, rows): 1 for name, rows in trunk.items()})
    expected[model.output, c.vocab] += 1
    if c.mtp and drafts:
        looked_up = (model.draft_table, model.draft_output)
        block = {name: rows for name, (rows, _) in shapes.items() if name.startswith(mtp) and name not in looked_up}
        for name, rows in block.items():
            expected[name, rows] += drafts
        expected[model.draft_output, model.draft_rows] += drafts
    elif c.mtp:
        for part in ("attn_k", "attn_v", "nextn.eh_proj"):
            name = f"{mtp}{part}.weight"
            expected[name, shapes[name][0]] += 1
    return expected


def expected_vectors(model: KernelModel, drafts: int) -> Counter[str]:
    """Small tensors and how often a launch's instructions apply them."""
    mtp = f"blk.{model.config.layers}."
    own = {name for name in model.vectors() if name.startswith(mtp)}
    expected = Counter({name: 1 for name in model.vectors() if name not in own})
    if model.config.mtp:
        block = [mtp + name for name in ("attn_norm.weight", "attn_k_norm.weight")]
        block += [f"{mtp}nextn.{name}.weight" for name in ("enorm", "hnorm")]
        if drafts:
            block += [mtp + name for name in ("post_attention_norm.weight", "attn_q_norm.weight")] + [model.draft_norm]
        for name in block:
            expected[name] += max(1, drafts)
    return expected


def _check_streamed(plan: Plan) -> Iterator[Finding]:
    found: Counter[tuple[str, int]] = Counter()
    by_name: dict[tuple[str, int], str] = {}
    shapes = plan.model.matrices()
    for phase in plan.weight_phases:
        for matrix in (matrix for strip in phase.strips for matrix in strip.matrices):
            key = (matrix.tensor, matrix.rows)
            found[key] += 1
            by_name[key] = phase.name
            rows, columns = shapes[matrix.tensor]
            if matrix.rows > rows or matrix.columns != columns or matrix.type != plan.model.types[matrix.tensor]:
                yield Finding("streamed", phase.name, f"{matrix.tensor} isn't {matrix}")
    expected = expected_matrices(plan.model, plan.drafts)
    for key in sorted(found.keys() | expected.keys()):
        if found[key] != expected[key]:
            tensor, rows = key
            text = f"{rows} rows of {tensor} are streamed {found[key]} times, not {expected[key]}"
            yield Finding("streamed", by_name.get(key, "plan"), text)
    vectors = Counter(name for instruction in plan.instructions for name in instruction.vectors)
    wanted = expected_vectors(plan.model, plan.drafts)
    for name in sorted(vectors.keys() | wanted.keys()):
        if vectors[name] != wanted[name]:
            text = f"{name} is applied {vectors[name]} times, not {wanted[name]}"
            yield Finding("streamed", "plan", text)


def _check_balance(plan: Plan, spread: float | None) -> Iterator[Finding]:
    for phase in plan.weight_phases:
        if any(share.stop > phase.items or share.start > share.stop for share in phase.ranges):
            continue  # coverage says so
        shares = bytes_by_sm(phase.strips, phase.ranges)
        mean = sum(shares) / len(shares)
        tile = max(matrix.tile_bytes for strip in phase.strips for matrix in strip.matrices)
        if spread is not None and max(shares) - min(shares) > spread * mean:
            text = f"SMs stream {min(shares)} to {max(shares)} bytes, {(max(shares) - min(shares)) / mean:.1%} apart"
            yield Finding("balance", phase.name, text)
        if spread is None and max(max(shares) - mean, mean - min(shares)) > tile:
            text = f"SMs stream {min(shares)} to {max(shares)} bytes, more than a tile from {mean:.0f}"
            yield Finding("balance", phase.name, text)


def _check_shared(plan: Plan, sharers: int | None) -> Iterator[Finding]:
    if sharers is None:
        return
    for phase in plan.weight_phases:
        for shared in shared_groups(phase.strips, phase.ranges):
            if len(shared.contributors) + 1 > sharers:
                text = f"group {shared.group} is spread over {len(shared.contributors) + 1} SMs"
                yield Finding("shared", phase.name, text)


def _check_rings(plan: Plan) -> Iterator[Finding]:
    taps = plan.model.config.conv_kernel
    for instruction in plan.instructions:
        if isinstance(instruction, DeltaRule) and max(MAX_ROWS + plan.rows, plan.rows + taps - 1) > RING:
            text = f"{plan.rows} rows behind up to {MAX_ROWS} to fold don't fit into {RING} slots"
            yield Finding("ring", instruction.name, text)
        if isinstance(instruction, MtpInput) and _rows(instruction) > MAX_ROWS:
            yield Finding("ring", instruction.name, f"{_rows(instruction)} rows of {MAX_ROWS} hidden ones")


def _rows(instruction: Instruction) -> int:
    return instruction.rows.limit
