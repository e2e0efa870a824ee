"""Whether a model fits into this machine's memory, before anything of it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.host_memory import available_memory

if TYPE_CHECKING:
    from server.gguf.reader import ModelFile

RUNTIME_BYTES = 400 * 2**20
"""What the process itself takes: Python, torch and its kernels."""


class TooLittleMemory(Exception):  # noqa: N818
    """The model needs more memory than there is. str() is one line with both numbers."""


def check_memory(file: ModelFile) -> None:
    """Raises TooLittleMemory when a model can't fit in the form that the engine keeps it in."""
    import torch

    from server.model import linear
    from server.model.weights import loaded_bytes

    weights = loaded_bytes(file, half=linear.can_halve("cpu", torch.float32))
    need = weights + RUNTIME_BYTES
    have = available_memory()
    if need > have:
        raise TooLittleMemory(
            f"{file.path} needs about {_gigabytes(need)} of memory ({_gigabytes(weights)} of it for the weights), "
            f"and {_gigabytes(have)} are available; free some, or name a smaller model with --model"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
