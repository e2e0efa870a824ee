"""Starts the language server as an editor does: a process of its own, in the workspace, with a runtime directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.lsp_client import LspClient


def start_server(folder: Path, **more: Any) -> LspClient:
    """folder: holds the runtime directory ``run`` and the workspace ``shop``."""
    root = root_of(folder)
    root.mkdir(exist_ok=True)
    environment = {"DRAFTLINE_RUNTIME_DIR": str(folder / "run"), **more.pop("env", {})}
    return LspClient(**{"cwd": root, **more, "env": environment})


def root_of(folder: Path) -> Path:
    return folder / "shop"
