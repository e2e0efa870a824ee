"""Has a model file checked before it takes the place of a working engine's model."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

from server.process import spawn


async def model_problem(path: Path) -> str | None:
    """Why no completion with this model file would work, in one line; None when nothing is found against it.

    In a process of its own: clients never import torch. Raises OSError when that can't be started.
    """
    process = await asyncio.create_subprocess_exec(
        *spawn.engine_command(),
        "check",
        str(path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _, told = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return None
    lines = told.decode("utf-8", "replace").strip().splitlines()
    if lines:
        return spawn.last_line(lines)
    return f"{path} can't be checked: the process {spawn.ending(process.returncode)}"
