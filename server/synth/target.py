"""Whether a file can be written where it is wanted, before anything is made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from server.synth.errors import TooLittleSpace, UnusableTarget

HEADER_BYTES = 16 << 20
"""More than any header here takes; most of it is the vocabulary."""


def check_target(path: Path, tensor_bytes: int) -> None:
    """Raises UnusableTarget (an existing file is never overwritten) or TooLittleSpace."""
    nbytes = tensor_bytes + HEADER_BYTES
    folder = path.absolute().parent
    if os.path.lexists(path):
        raise UnusableTarget(f"{path} exists already, and is left alone. Remove it, or name another file.")
    if not folder.is_dir():
        raise UnusableTarget(f"{path} can't be written: there is no folder {folder}. Make it first.")
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UnusableTarget(f"{path} can't be written: {error.strerror}. Name another place.") from None
    if free < nbytes:
        raise TooLittleSpace(
            f"{path} takes up to {nbytes / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free in {folder}. "
            f"Free some, or name a place on another disk."
        )
