"""Which sources a prompt may have besides the text of the current document."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sources:
    """open_files: the other open files and what was edited in them. definitions: of names at the cursor, from open
    files that the prompt doesn't hold in full. path: the current file's. repository: its name."""

    open_files: bool = True
    definitions: bool = True
    path: bool = True
    repository: bool = True
