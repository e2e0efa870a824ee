"""Where the golden model files are: tests/golden, and a folder of further ones if DRAFTLINE_GOLDEN names one."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def models() -> list[Path]:
    """Every golden model file that has its outputs (`.npz`) beside it, one per name, sorted by name."""
    folders = [FOLDER]
    if further := os.environ.get("DRAFTLINE_GOLDEN"):
        folders.append(Path(further))
    found: dict[str, Path] = {}
    for folder in folders:
        for path in folder.glob("*.gguf"):
            if path.with_suffix(".npz").exists():
                found.setdefault(path.stem, path)
    return [found[name] for name in sorted(found)]
