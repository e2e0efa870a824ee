"""What `draftline profile` does and says: a launch of the decode kernel with time stamps, as a table and as bars."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from server.models_known import ModelNotFound, asked_model, find_model

if TYPE_CHECKING:
    from torch import Tensor

    from server.kernel.gpu import GpuKernel
    from server.kernel.plan import Plan

DRAFT_ROWS = 32_768
"""Rows of the draft head, for a model that has as many."""
WARM_UPS, LAUNCHES = 5, 10


def run(model: str | None, rows: int, drafts: int, context: int, json_path: str | None) -> int:
    """Print the profile; 2 for a launch that doesn't exist, 1 where it can't be measured."""
    try:
        path = find_model(asked_model(model))
    except ModelNotFound as error:
        return _failed(error, 1)
    try:
        if json_path is not None and not Path(json_path).absolute().parent.is_dir():
            raise ValueError(f"{json_path} can't be written: there is no such folder")
    except ValueError as error:
        return _failed(error, 2)
    try:
        import torch

        from server.gguf.errors import ModelFileError
        from server.gguf.reader import ModelFile
        from server.kernel.errors import KernelCompileError, KernelFault, NoGpu, UnsupportedByKernel
        from server.kernel.gpu import GpuKernel, require_gpu
        from server.kernel.model import KernelModel
        from server.kernel.plan import build_plan
        from server.kernel.profile import SIGNS, phase_figures, picture, table
    except ImportError as error:
        return _failed(f"{error}; install Draftline again", 1)
    try:
        require_gpu()
        file = ModelFile.open(path)
        kernel_model = KernelModel.from_file(file, DRAFT_ROWS)
        sms = torch.cuda.get_device_properties("cuda").multi_processor_count
        try:
            plan = build_plan(kernel_model, sms, rows, drafts)
        except ValueError as error:
            return _failed(error, 2)
        kernel = GpuKernel.from_file(file, kernel_model, "cuda", timed=True)
        launches = measure(kernel, plan, context)
    except torch.OutOfMemoryError:
        return _failed(
            f"the GPU's memory is too small for {path.name} at {context} positions, or others use it; "
            "ask for a shorter --context",
            1,
        )
    except (NoGpu, KernelCompileError, UnsupportedByKernel, KernelFault, ModelFileError) as error:
        return _failed(error, 1)
    phases = phase_figures(plan, launches, context)
    total = sum(phase.total_us for phase in phases)
    card = torch.cuda.get_device_name("cuda")
    print(
        f"{path.name} on {card}: {rows} rows, {drafts} drafts, {context} positions, {total / 1e3:.3f} ms "
        f"(mean of {len(launches)} launches with time stamps)\n"
    )
    print("\n".join(table(phases)))
    signs = "  ".join(f"{name} {sign}" for name, sign in SIGNS.items())
    print(f"\n{signs}\n" + "\n".join(picture(phases)))
    if json_path is not None:
        found = {
            "model": str(path),
            "gpu": card,
            "sms": sms,
            "rows": rows,
            "drafts": drafts,
            "context": context,
            "launches": len(launches),
            "total_us": total,
            "phases": [phase.to_json() for phase in phases],
        }
        try:
            Path(json_path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            return _failed(f"{json_path} can't be written: {error.strerror or error}", 1)
    return 0


def measure(kernel: GpuKernel, plan: Plan, context: int) -> list[Tensor]:
    """Time stamps of LAUNCHES launches at `context` positions, int64 [instructions, SMs, 6], on the CPU.

    Raises KernelFault, KernelCompileError.
    """
    from server.kernel.stand_in import fill, places, put

    at = kernel.new_buffers(context + 2 * plan.rows + 64)
    fill(at, kernel.model.config.vocab)
    counts = places(at, context, plan.rows, external=plan.rows > 1 and plan.drafts == 0)
    found = []
    for _ in range(WARM_UPS + LAUNCHES):
        put(at, counts, plan.rows)
        found.append(kernel.times(plan, at).cpu())
    return found[WARM_UPS:]


def _failed(error: Exception | str, code: int) -> int:
    print(f"draftline: {error}", file=sys.stderr)
    return code
