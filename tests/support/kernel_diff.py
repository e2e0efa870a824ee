"""A kernel against the interpreter, one instruction after another: both begin with what the kernel left."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from server.kernel.buffers import BLOCK
from server.kernel.device import DeviceBuffers
from server.kernel.instructions import (
    Attention,
    DeltaRule,
    Instruction,
    chunk_positions,
)
from server.kernel.interpreter import Interpreter
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers, count

FLOATS = 3e-5
"""How far float32 results may be from the interpreter's float64, over the greatest value of the buffer."""
CACHED = 2.0**-10
"""The same of keys and values, two neighbouring halves, and of what is summed from them."""
STEPS = 1.02
"""Rounded to 8 bits two nearly equal numbers are a step apart, at most (but see what float32 leaves of x.low) ..."""
FLIPS = {"x.low": 0.1}
"""... and so many of them, where it isn't one in 50."""


class StepwiseKernel(Protocol):
    def run(self, plan: Plan, at: Buffers, first: int = 0, stop: int | None = None) -> None: ...


class WrongBufferError(AssertionError):
    """An instruction wrote something else than the interpreter."""


@dataclass
class Comparison:
    """Launches the instructions of plans one by one and compares all that each of them leaves.

    errors: the greatest one found, by (kind of instruction, buffer without its layer).
    """

    kernel: StepwiseKernel
    interpreter: Interpreter
    errors: dict[tuple[str, str], float]

    def run(self, plan: Plan, at: DeviceBuffers) -> None:
        """Raises WrongBufferError. `at` is afterwards as after a launch of the plan."""
        capacity = next((x.shape[1] for name, x in at.items() if name.endswith(".k")), 1)
        like = self.interpreter.new_buffers(capacity, "logits" in at)
        widths: dict[str, tuple[int, int]] = {}
        found = self._interpreted(at, like, widths)
        for index, i in enumerate(plan.instructions):
            wanted, before = found, {name: x.clone() for name, x in at.items()}
            rows = count(at, "behind") if i.rows.kind == "behind" else i.rows.limit
            self.interpreter._run(i, wanted)
            self.kernel.run(plan, at, index, index + 1)
            written = {access.buffer for access in i.writes}
            for name, x in before.items():
                if name not in written and not torch.equal(x.view(torch.uint8), at[name].view(torch.uint8)):
                    raise WrongBufferError(f"{i.name} ({type(i).__name__}) writes {name}")
            widths |= {name: (rows, columns) for name, columns in self._columns(i).items() if name in written}
            found = self._interpreted(at, like, widths)
            for name in sorted(written - {"sums"}):
                self._compare(i, name, found, wanted, rows, at)

    def _columns(self, i: Instruction) -> dict[str, int]:
        """Columns of the 8-bit buffers that the instruction may write."""
        c = self.interpreter.model.config
        mixed = c.value_width if isinstance(i, DeltaRule) else c.heads * c.head_dim
        return {"x.in": c.hidden, "x.low": c.hidden, "ffn.in": c.ffn, "mtp.in": 2 * c.hidden, "mixed.in": mixed}

    def _interpreted(self, at: DeviceBuffers, like: Buffers, widths: dict[str, tuple[int, int]]) -> Buffers:
        """The kernel's buffers in the interpreter's form, numbers and device."""
        found: Buffers = {}
        for name, empty in like.items():
            found[name] = torch.zeros_like(empty)
            if at.listed[name].kind != "int8":
                found[name][:] = at[name]
            elif name in widths:
                rows, columns = widths[name]
                found[name][:rows, :columns] = at.rounded(name, rows, columns)
        return found

    def _compare(
        self, i: Instruction, name: str, found: Buffers, wanted: Buffers, rows: int, at: DeviceBuffers
    ) -> None:
        ours, theirs = found[name], wanted[name]
        if ours.dtype == torch.int64:
            whole = at.listed[name].kept
            if not torch.equal(ours if whole else ours[:rows], theirs if whole else theirs[:rows]):
                raise WrongBufferError(
                    f"{i.name} ({type(i).__name__}): {name} is {ours.tolist()}, not {theirs.tolist()}"
                )
            return
        if at.listed[name].kind == "int8":
            return self._compare_rounded(i, name, found, wanted, rows, at)
        if name.startswith("parts"):
            ours, theirs = self._parts(i, ours, wanted, rows), self._parts(i, theirs, wanted, rows)
        elif not name.startswith("blk."):
            ours, theirs = ours[:rows], theirs[:rows]
        if "best" in name:
            if not torch.equal(ours[..., 1][ours[..., 0].isfinite()], theirs[..., 1][theirs[..., 0].isfinite()]):
                raise WrongBufferError(
                    f"{i.name}: the best rows are {ours[..., 1].tolist()}, not {theirs[..., 1].tolist()}"
                )
            ours, theirs = (torch.where(x[..., 0].isfinite(), x[..., 0], 0) for x in (ours, theirs))
        ours, theirs = ours.double(), theirs.double()
        size = theirs.nan_to_num(0.0).abs().max().clamp(min=1e-30) if theirs.numel() else torch.tensor(1.0)
        untouched = ours.isnan() & theirs.isnan()
        error = ((ours - theirs).abs() / size).nan_to_num(torch.inf).where(~untouched, 0.0).flatten()
        halves = name.endswith((".k", ".v")) or name.startswith("parts")
        self._judge(i, name, error, CACHED if halves else FLOATS, ours.shape)

    def _parts(self, i: Instruction, x: Tensor, at: Buffers, rows: int) -> Tensor:
        """What of the parts of a context is in use: those up to each row's position."""
        assert isinstance(i, Attention)
        length, direction, kept = count(at, "length") + i.step, -1 if i.rows.kind == "behind" else 1, []
        for row in range(min(rows, i.queries)):
            position = length + direction * row
            kept.append(x[row, :, : -(-(position + 1) // chunk_positions(position, i.parts))].flatten())
        return torch.cat(kept) if kept else x[:0].flatten()

    def _compare_rounded(
        self, i: Instruction, name: str, found: Buffers, wanted: Buffers, rows: int, at: DeviceBuffers
    ) -> None:
        """In steps of each block. The second plane only counts with the first: it has what the first one lacks."""
        columns = self._columns(i)[name]
        ours, theirs = found[name], wanted[name]
        scales = _blocks(wanted["x.in" if name == "x.low" else name], rows, columns).abs().amax(-1, keepdim=True) / 127
        if name == "x.low":
            ours, theirs, scales = ours + found["x.in"], theirs + wanted["x.in"], scales / 254
        off = (_blocks(ours, rows, columns) - _blocks(theirs, rows, columns)).abs()
        steps = (off / scales.clamp(min=1e-30)).nan_to_num(torch.inf)
        worst, share = float(steps.max()), float((steps > 0.1).double().mean())
        self.errors[type(i).__name__, name] = max(self.errors.get((type(i).__name__, name), 0), share)
        if worst > STEPS * (1.1 if name == "x.low" else 1) or share > max(FLIPS.get(name, 0.02), 2.01 / steps.numel()):
            row, block = (int(k) for k in torch.unravel_index(steps.amax(-1).argmax(), steps.shape[:2]))
            raise WrongBufferError(
                f"{i.name} ({type(i).__name__}): {name} is up to {worst:.3g} steps of 8 bits off, "
                f"{share:.1%} of it are; worst in row {row}, block {block} of {steps.shape[1]}"
            )
        if name == "x.low" or "x.low" not in {access.buffer for access in i.writes}:
            sums = at.sums("x.in" if name == "x.low" else name, rows)[:, : steps.shape[1]].double()
            right = _blocks(ours, rows, columns).double().sum(-1)
            size = scales.squeeze(-1).clamp(min=1e-30) * 127 * BLOCK * (254 if name == "x.low" else 1)
            if ((sums - right).abs() / size).nan_to_num(torch.inf).max() > 2.0**-15:
                raise WrongBufferError(f"{i.name} ({type(i).__name__}): the sums of {name} aren't those of its values")

    def _judge(self, i: Instruction, name: str, error: Tensor, bound: float, shape: torch.Size) -> None:
        worst = float(error.max()) if error.numel() else 0.0
        key = type(i).__name__, name.split(".")[-1] if name.startswith("blk.") else name
        self.errors[key] = max(self.errors.get(key, 0.0), worst)
        if worst > bound:
            places = [
                tuple(int(k) for k in torch.unravel_index(at, shape))
                for at in error.topk(min(3, error.numel())).indices
            ]
            share = float((error > bound).double().mean())
            raise WrongBufferError(
                f"{i.name} ({type(i).__name__}): {name} is up to {worst:.3g} of its greatest value off, "
                f"{share:.1%} of it too far; worst at {places} of {tuple(shape)}"
            )


def _blocks(x: Tensor, rows: int, columns: int) -> Tensor:
    """[rows, blocks, 32] of whole blocks."""
    return torch.nn.functional.pad(x[:rows, :columns].double(), (0, -columns % BLOCK)).view(rows, -1, BLOCK)
