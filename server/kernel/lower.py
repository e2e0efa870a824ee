"""Makes of a plan what a launch is given: instructions with addresses, and the items of every SM."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from server.kernel import structs
from server.kernel.buffers import BLOCK
from server.kernel.device import DeviceBuffers, DeviceModel
from server.kernel.errors import UnsupportedByKernel
from server.kernel.instructions import (
    Attention,
    AttentionReduce,
    DeltaRule,
    Embed,
    GateUp,
    Head,
    Instruction,
    MtpInput,
    Project,
    Residual,
    Verify,
    WeightPhase,
)
from server.kernel.plan import Plan
from server.kernel.portions import packed_portions
from server.kernel.structs import InstructionStruct, Kind, LaunchStruct
from server.kernel.tiles import Strip

HANDED_WORDS = 32
"""Between the counters of two SMs: each has a cache line of its own."""
PORTION_BYTES = 16
TIMES = 6
"""Time stamps of an instruction on an SM: STAMPS of `cuda/shared.cuh`."""


@dataclass(frozen=True)
class Tables:
    """A lowered plan on the device.

    instructions: uint8. ranges: int32 [instructions, SMs, 2], of items, in weight phases of portions. portions: int32
    [portions, 4]; layers that are alike share theirs.
    """

    instructions: Tensor
    ranges: Tensor
    portions: Tensor
    count: int


class Control:
    """What the launches of a device share: the barrier of all SMs, counted on from launch to launch.

    epoch: instructions of all launches so far. Launches that share it must follow each other. fault: int32 [1], where
    a launch says which wait took too long (None: on the device).
    """

    def __init__(self, sms: int, device: torch.device | str, epoch: int = 0, fault: Tensor | None = None) -> None:
        self.sms = sms
        self.epoch = epoch
        self.barrier = torch.full((1,), _int32(epoch * sms), dtype=torch.int32, device=device)
        self.handed = torch.full((sms * HANDED_WORDS,), _int32(epoch), dtype=torch.int32, device=device)
        self.fault = torch.zeros(1, dtype=torch.int32, device=device) if fault is None else fault

    def launch(
        self, tables: Tables, at: DeviceBuffers, first: int = 0, count: int | None = None, times: Tensor | None = None
    ) -> LaunchStruct:
        """The parameter of the next launch; it is counted as done.

        first, count: a part of the plan. times: int64 [count, SMs, TIMES], for a kernel with time stamps.
        """
        count = tables.count - first if count is None else count
        parameter = LaunchStruct(
            instructions=tables.instructions.data_ptr() + first * ctypes.sizeof(InstructionStruct),
            count=count,
            **{name: at[name].data_ptr() for name in ("counts", "accepted", "given", "hidden", "sums")},
            mtp_hidden=at["mtp.hidden"].data_ptr() if "mtp.hidden" in at else 0,
            handed=self.handed.data_ptr(),
            barrier=self.barrier.data_ptr(),
            epoch=self.epoch,
            fault=self.fault.data_ptr(),
            times=0 if times is None else times.data_ptr(),
        )
        self.epoch += count
        return parameter


def _int32(value: int) -> int:
    """The low 32 bits as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def lower(plan: Plan, weights: DeviceModel, at: DeviceBuffers) -> Tables:
    """Instructions for launches of this plan on these buffers.

    Raises UnsupportedByKernel for a phase of more strips than the kernel has room for, ValueError when the buffers are
    for another number of SMs.
    """
    if at.sms != plan.sms:
        raise ValueError(f"buffers for {at.sms} SMs, but a plan for {plan.sms}")
    device = at["counts"].device
    lists = [packed_portions(i.strips, i.ranges) for i in plan.instructions if isinstance(i, WeightPhase)]
    portions, starts = _joined([words for words, _ in lists])
    portions = portions.to(device)
    phases = iter(zip(starts, (mine for _, mine in lists), strict=True))
    lowering = _Lowering(plan, weights, at)
    array = (InstructionStruct * len(plan.instructions))()
    shares = []
    for index, instruction in enumerate(plan.instructions):
        lowering.fill(array[index], instruction)
        items = instruction.ranges
        if isinstance(instruction, WeightPhase):
            start, items = next(phases)
            array[index].portions = portions.data_ptr() + start * PORTION_BYTES
        shares.append([(share.start, share.stop) for share in items])
    ranges = torch.tensor(shares, dtype=torch.int32).to(device)
    for index in range(len(plan.instructions)):
        array[index].ranges = ranges.data_ptr() + index * plan.sms * 8
    instructions = torch.frombuffer(bytearray(array), dtype=torch.uint8).to(device)
    return Tables(instructions, ranges, portions, len(plan.instructions))


def _joined(lists: list[Tensor]) -> tuple[Tensor, list[int]]:
    """(int32: all different tensors of 32-bit words among `lists` one below the other, the first row of each of
    `lists`); layers that are alike have the same tensor."""
    first: dict[int, int] = {}
    parts, rows = [], 0
    for words in lists:
        if id(words) not in first:
            first[id(words)] = rows
            parts.append(words)
            rows += len(words)
    joined = torch.cat(parts) if parts else torch.zeros(0, 4, dtype=torch.int64)
    return joined.to(torch.uint32).view(torch.int32).contiguous(), [first[id(words)] for words in lists]


class _Lowering:
    def __init__(self, plan: Plan, weights: DeviceModel, at: DeviceBuffers) -> None:
        self.plan = plan
        self.config = plan.model.config
        self.weights = weights
        self.at = at

    def fill(self, to: InstructionStruct, i: Instruction) -> None:
        to.rows_kind, to.rows_limit = structs.ROWS[i.rows.kind], i.rows.limit
        if isinstance(i, WeightPhase):
            self._weight_phase(to, i)
        match i:
            case Embed():
                to.kind, to.drafts = Kind.EMBED, i.drafts
                self._table(to, i.table)
                self._residual_output(to, i.norm)
                to.tokens = self._buffer("tokens")
                if i.drafts:
                    self._draft_best(to, 0)
            case MtpInput():
                to.kind, to.step = Kind.MTP_INPUT, i.step
                self._table(to, i.table)
                to.norm, to.norm2 = self._vector(i.token_norm), self._vector(i.hidden_norm)
                to.output, to.output_squares = self._int8("mtp.in"), self._buffer("mtp.squares")
                if i.step:
                    self._draft_best(to, i.step - 1)
            case Project():
                to.kind = Kind.PROJECT
                for strip, target in zip(to.strip, i.targets, strict=False):
                    strip.target, strip.column = self._buffer(target.buffer), target.column
                    strip.stride, strip.ring = self.at[target.buffer].shape[1], target.ring
            case Residual():
                to.kind, to.add = Kind.RESIDUAL, i.add
                self._residual_output(to, i.norm)
                if i.low:
                    to.output_low = self._buffer("x.low")
            case GateUp():
                to.kind, to.output = Kind.GATE_UP, self._int8("ffn.in")
            case Head():
                self._head(to, i)
            case DeltaRule():
                self._delta_rule(to, i)
            case Attention():
                self._attention(to, i)
            case AttentionReduce():
                to.kind, to.step = Kind.ATTENTION_REDUCE, i.step
                to.output, to.qkv = self._int8("mixed.in"), self._buffer("qkv")
                to.parts, to.stats = self._buffer("parts"), self._buffer("parts.stats")
            case Verify():
                to.kind, to.best, to.tokens = Kind.VERIFY, self._buffer("best"), self._buffer("tokens")
            case _:
                raise TypeError(f"{i.name} is a {type(i).__name__}, which the kernel doesn't know")

    def _weight_phase(self, to: InstructionStruct, i: WeightPhase) -> None:
        if len(i.strips) > structs.STRIPS:
            raise UnsupportedByKernel(f"{i.name} streams {len(i.strips)} matrices at once, more than {structs.STRIPS}")
        for strip, source in zip(to.strip, i.strips, strict=False):
            self._strip(strip, source)
        columns = i.strips[0].matrices[0].columns
        to.blocks = -(-columns // BLOCK)
        to.input = self._int8(i.input.buffer)
        if i.input.low:
            to.input_low = self._buffer(i.input.low)
        if i.input.segments:
            to.squares, to.segments = self._buffer(i.input.squares), i.input.segments
            to.segment_width = columns // i.input.segments

    def _strip(self, to: structs.StripStruct, strip: Strip) -> None:
        to.matrices, to.rows = len(strip.matrices), strip.rows
        for index, source in enumerate(strip.matrices):
            tiles = self.weights.matrices[source.tensor, source.draft]
            to.tiles[index] = tiles.data_ptr()
            whole = strip.groups * strip.row_tiles * source.column_tiles * source.tile_bytes
            if tiles.numel() != whole:
                raise ValueError(f"{source.tensor}: {tiles.numel()} bytes of tiles, not {whole}")

    def _head(self, to: InstructionStruct, i: Head) -> None:
        to.kind, to.norm, to.x = Kind.HEAD, self._vector(i.norm), self._buffer("x")
        if i.step is None:
            to.hidden, to.best = self._buffer("hidden"), self._buffer("best")
            to.logits = self._buffer("logits") if i.logits else 0
        else:
            to.hidden, to.best = self._buffer("mtp.hidden"), self._buffer(f"mtp.best.{i.step}")
            to.step = i.step
            if self.weights.draft_ids is not None:
                to.draft_ids = self.weights.draft_ids.data_ptr()

    def _delta_rule(self, to: InstructionStruct, i: DeltaRule) -> None:
        block = f"blk.{i.layer}"
        to.kind, to.output, to.output_squares = Kind.DELTA_RULE, self._int8("mixed.in"), self._buffer("mixed.squares")
        to.memory, to.conv = self._buffer(f"{block}.memory"), self._buffer(f"{block}.conv")
        to.keys, to.deltas = self._buffer(f"{block}.keys"), self._buffer(f"{block}.deltas")
        to.decays = self._buffer(f"{block}.decays")
        to.z, to.gates = self._buffer("z"), self._buffer("gates")
        to.taps, to.log_decay = self._vector(f"{block}.ssm_conv1d.weight"), self._vector(f"{block}.ssm_a")
        to.time_bias = self._vector(self.plan.model.time_bias(i.layer))
        to.gate_norm = self._vector(f"{block}.ssm_norm.weight")

    def _attention(self, to: InstructionStruct, i: Attention) -> None:
        block = f"blk.{i.layer}"
        to.kind, to.step, to.queries, to.qkv = Kind.ATTENTION, i.step, i.queries, self._buffer("qkv")
        to.cache_k, to.cache_v = self._buffer(f"{block}.k"), self._buffer(f"{block}.v")
        to.capacity = self.at[f"{block}.k"].shape[1]
        to.parts, to.stats = self._buffer("parts"), self._buffer("parts.stats")
        to.q_norm = self._vector(f"{block}.attn_q_norm.weight")
        to.k_norm = self._vector(f"{block}.attn_k_norm.weight")

    def _residual_output(self, to: InstructionStruct, norm: str) -> None:
        """The residual, and what the next matrix needs of it."""
        to.x, to.norm = self._buffer("x"), self._vector(norm)
        to.output, to.output_squares = self._int8("x.in"), self._buffer("x.squares")

    def _draft_best(self, to: InstructionStruct, step: int) -> None:
        to.draft_best, to.draft_best_stride = self._buffer(f"mtp.best.{step}"), 2 * self.plan.sms

    def _table(self, to: InstructionStruct, name: str) -> None:
        table = self.weights.tables[name]
        to.table, to.table_type = table.data_ptr(), structs.TYPES[self.plan.model.types[name]]
        to.table_row_bytes = table.shape[1]

    def _buffer(self, name: str) -> int:
        return self.at[name].data_ptr()

    def _vector(self, name: str) -> int:
        return self.weights.vectors[name].data_ptr()

    def _int8(self, name: str) -> structs.Int8Rows:
        at, layout = self._buffer(name), self.at.layout(name)
        return structs.Int8Rows(at, at + layout.scales, at + layout.sums)
