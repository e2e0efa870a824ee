"""What a command of this folder reads must have been made before: one line says what is missing and what makes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

CORPUS = "python -P -m models.corpus"
TOKENIZER = "python -P -m models.train_tokenizer"
TRAIN = "python -P -m models.train"
EXPORT = "python -P -m models.export"


def require(command: str, inputs: Iterable[tuple[Path | None, str]]) -> None:
    """Ends the process with status 1 and a line on standard error for the first path that isn't there.

    inputs: each with the command that makes it; None for an option that wasn't given.
    """
    for path, maker in inputs:
        if path is not None and not path.exists():
            sys.exit(f'{command}: there is no {path}; `{maker}` makes it (models/README.md, "Make it again")')
