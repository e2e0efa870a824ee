"""Runs a plan in torch, instruction by instruction: what a kernel's buffers must hold after each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from server.kernel.arithmetic import Arithmetic, row_products, square_sums
from server.kernel.buffers import buffers
from server.kernel.instructions import (
    Attention,
    AttentionReduce,
    DeltaRule,
    Embed,
    GateUp,
    Head,
    Input,
    Instruction,
    MtpInput,
    Project,
    Residual,
    Rows,
    Verify,
)
from server.kernel.mixers import AttentionMixer, DeltaMixer
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers, count, ring_slots, set_counts
from server.kernel.tiles import Range, Strip
from server.kernel.weights import Weights
from server.model.activations import silu


class Interpreter:
    """One model on `sms` imagined SMs. It keeps nothing: what a sequence keeps is in the buffers.

    Every row is computed by itself, so its bits are the same in every company.
    """

    def __init__(self, model: KernelModel, weights: Weights, arithmetic: Arithmetic, sms: int) -> None:
        self.model = model
        self.weights = weights
        self.arithmetic = arithmetic
        self.sms = sms
        self.delta = DeltaMixer(model, weights, arithmetic)
        self.attention = AttentionMixer(model, weights, arithmetic)

    def new_buffers(self, capacity: int, logits: bool = False) -> Buffers:
        """All buffers of a new sequence with room for `capacity` positions."""
        device = self.weights.device
        found = buffers(self.model, self.sms, capacity, logits).values()
        return {buffer.name: self.arithmetic.new(buffer, device) for buffer in found}

    @torch.inference_mode()
    def run(self, plan: Plan, at: Buffers, stop_after: str | None = None) -> None:
        """Run a launch on the buffers, in place. stop_after: the name of the last instruction to run."""
        for instruction in plan.instructions:
            self._run(instruction, at)
            if instruction.name == stop_after:
                break

    def _run(self, instruction: Instruction, at: Buffers) -> None:
        match instruction:
            case Embed():
                self._embed(instruction, at)
            case MtpInput():
                self._mtp_input(instruction, at)
            case Project():
                self._project(instruction, at)
            case Residual():
                self._residual(instruction, at)
            case GateUp():
                self._gate_up(instruction, at)
            case Head():
                self._head(instruction, at)
            case DeltaRule():
                self.delta.run(instruction, at, self._count(instruction.rows, at))
            case Attention():
                self.attention.run(instruction, at, self._count(instruction.rows, at))
            case AttentionReduce():
                self.attention.reduce(instruction, at, self._count(instruction.rows, at))
            case Verify():
                self._verify(instruction, at)
            case _:
                raise TypeError(f"{instruction.name} is a {type(instruction).__name__}, which has no meaning here")

    # ------------------------------------------------------------------------------------------------ inputs

    def _embed(self, i: Embed, at: Buffers) -> None:
        rows = i.rows.limit
        newest = at["accepted"][count(at, "behind") - 1]
        if count(at, "external") or rows != 1 + i.drafts:
            drafts = at["given"][: rows - 1]
        else:
            drafts = torch.stack([newest, *(self._best(at[f"mtp.best.{step}"])[0] for step in range(i.drafts))])[1:]
        tokens = torch.cat((newest[None], drafts))
        at["tokens"][:rows] = tokens
        self._hand_on(self.weights.rows(i.table, tokens), i.norm, at)

    def _mtp_input(self, i: MtpInput, at: Buffers) -> None:
        rows = self._count(i.rows, at)
        if i.step:
            tokens = self._best(at[f"mtp.best.{i.step - 1}"])
            hidden = at["mtp.hidden"]
        else:
            tokens, hidden = at["accepted"][:rows].flip(0), at["hidden"][:rows].flip(0)
        embedded = self.weights.rows(i.table, tokens)
        weight = torch.cat((self.weights.vector(i.token_norm), self.weights.vector(i.hidden_norm)))
        both = torch.cat((embedded, hidden), dim=1)
        at["mtp.in"][:rows] = self.arithmetic.rounded(both * weight, 2)
        at["mtp.squares"][:rows] = square_sums(both, 2)

    def _input(self, source: Input, at: Buffers, rows: int, width: int) -> Tensor:
        """A matrix' input [rows, width], the norms' factors multiplied in."""
        x = at[source.buffer][:rows, :width]
        if source.low:
            x = x + at[source.low][:rows, :width]
        if not source.segments:
            return x
        part = width // source.segments
        mean = at[source.squares][:rows].view(rows, source.segments, -1).sum(-1) / part
        return (x.view(rows, source.segments, part) * _factor(mean, self.model.config.eps)[:, :, None]).flatten(1)

    # ------------------------------------------------------------------------------------------------ matrices

    def _products(self, i: Project | Residual | GateUp | Head, strip: Strip, at: Buffers, rows: int) -> list[Tensor]:
        """[rows, outputs] of each matrix of a strip."""
        x = self._input(i.input, at, rows, strip.matrices[0].columns)
        return [row_products(x, self.weights.matrix(m.tensor, m.draft)) for m in strip.matrices]

    def _project(self, i: Project, at: Buffers) -> None:
        rows = self._count(i.rows, at)
        for strip, target in zip(i.strips, i.targets, strict=True):
            (y,) = self._products(i, strip, at, rows)
            buffer, length = at[target.buffer], count(at, "length")
            where = ring_slots(range(length, length + rows)) if target.ring else torch.arange(rows)
            buffer[where.to(buffer.device), target.column : target.column + y.shape[1]] = y

    def _residual(self, i: Residual, at: Buffers) -> None:
        rows = self._count(i.rows, at)
        (y,) = self._products(i, i.strips[0], at, rows)
        self._hand_on(at["x"][:rows] + y if i.add else y, i.norm, at, i.low)

    def _gate_up(self, i: GateUp, at: Buffers) -> None:
        rows = self._count(i.rows, at)
        gate, up = self._products(i, i.strips[0], at, rows)
        at["ffn.in"][:rows] = self.arithmetic.rounded(silu(gate) * up)

    def _hand_on(self, x: Tensor, norm: str, at: Buffers, low: bool = False) -> None:
        rows = x.shape[0]
        weighted = x * self.weights.vector(norm)
        at["x"][:rows] = x
        at["x.in"][:rows] = self.arithmetic.rounded(weighted)
        if low:
            at["x.low"][:rows] = self.arithmetic.left(weighted, at["x.in"][:rows])
        at["x.squares"][:rows] = square_sums(x)

    def _head(self, i: Head, at: Buffers) -> None:
        rows = self._count(i.rows, at)
        mean = at["x.squares"][:rows].sum(-1, keepdim=True) / self.model.config.hidden
        hidden = at["x"][:rows] * _factor(mean, self.model.config.eps) * self.weights.vector(i.norm)
        at["hidden" if i.step is None else "mtp.hidden"][:rows] = hidden
        (logits,) = self._products(i, i.strips[0], at, rows)
        if i.logits:
            at["logits"][:rows] = logits
        best = at["best" if i.step is None else f"mtp.best.{i.step}"]
        best[:rows, :, 0] = -torch.inf
        for sm, share in enumerate(i.ranges):
            first, stop = _finished_rows(i.strips[0], share)
            if first < stop:
                value, row = logits[:, first:stop].max(dim=1)
                row += first
                best[:rows, sm, 0] = value
                best[:rows, sm, 1] = (row if i.step is None else self.weights.draft_ids[row]).to(best.dtype)

    # ------------------------------------------------------------------------------------------------ tokens

    def _best(self, best: Tensor) -> Tensor:
        """[rows, SMs, (value, token)] -> the token with the greatest value, the first of equals, [rows]."""
        sm = (best[:, :, 0] == best[:, :, 0].amax(dim=1, keepdim=True)).int().argmax(dim=1)
        return best[torch.arange(best.shape[0]), sm, 1].long()

    def _verify(self, i: Verify, at: Buffers) -> None:
        rows = i.rows.limit
        best = self._best(at["best"][:rows])
        at["accepted"][:rows] = best
        kept = 1
        while kept < rows and best[kept - 1] == at["tokens"][kept]:
            kept += 1
        set_counts(at, length=count(at, "length") + kept, fold=kept, behind=kept)

    def _count(self, rows: Rows, at: Buffers) -> int:
        return count(at, "behind") if rows.kind == "behind" else rows.limit


def _factor(mean_square: Tensor, eps: float) -> Tensor:
    return (mean_square + eps).rsqrt()


def _finished_rows(strip: Strip, share: Range) -> tuple[int, int]:
    """Rows of the groups that an SM begins, and so finishes: first, one behind the last."""
    size = len(strip.group)
    first, stop = (min(-(-tile // size) * strip.group_rows, strip.rows) for tile in (share.start, share.stop))
    return first, stop
