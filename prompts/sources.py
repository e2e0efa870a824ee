"""Which sources a prompt may have besides the text of the current document."""

from __future__ import annotations

from dataclasses import dataclass, field


def _on(description: str) -> bool:
    switch: bool = field(default=True, metadata={"description": description})
    return switch


@dataclass(frozen=True)
class Sources:
    """Each switch with what it means for people; the published schema of the settings is made from it."""

    open_files: bool = _on("The other open files of the same workspace folder, and what was edited in them.")
    definitions: bool = _on(
        "Definitions of names near the cursor, from open files that the prompt has no room for as a whole."
    )
    path: bool = _on("The path of the current file, relative to its workspace folder.")
    repository: bool = _on("The name of the workspace folder.")
