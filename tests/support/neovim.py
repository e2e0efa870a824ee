"""A real Neovim with the plug-in, driven by its keys: what stands in the buffer, and what is drawn as ghost text."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvim

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "editors"))

import install_nvim  # noqa: E402

VERSIONS = install_nvim.VERSIONS
PLUGIN = ROOT / "editors" / "nvim"
NAMESPACES = ("draftline", "nvim.lsp.inline_completion")
LSP_COMMAND = [sys.executable, "-P", "-E", "-m", "server.cli", "lsp"]

COLLECT = """
_G.told, _G.logged = {}, {}
vim.notify = function(text) table.insert(_G.told, text) end
vim.lsp.handlers['window/logMessage'] = function(_, message) table.insert(_G.logged, message.message) end
vim.lsp.handlers['window/showMessage'] = function(_, message) table.insert(_G.told, message.message) end
vim.o.swapfile = false
vim.o.autoindent = true
vim.cmd('filetype on')
"""


class Neovim:
    """folder: the workspace. environment: beside the one of the tests."""

    def __init__(self, version: str, folder: Path, environment: dict[str, str]) -> None:
        program = install_nvim.program(version)
        if not program.exists():
            raise FileNotFoundError(f"{program} is missing; `make nvim-editors` installs it")
        self.version = version
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTLINE_", "NVIM"))}
        clean = {f"XDG_{name}_HOME": str(folder / "xdg") for name in ("CONFIG", "DATA", "STATE", "CACHE")}
        command = ["env", "-i", *(f"{k}={v}" for k, v in (inherited | clean | environment).items()), str(program)]
        start = ["--embed", "--headless", "-u", "NONE", "-i", "NONE", "-n", "--cmd", f"set rtp^={PLUGIN}"]
        self.api = pynvim.attach("child", argv=[*command, *start])
        self.api.command(f"cd {folder}")
        self.lua(COLLECT)

    def lua(self, code: str, *arguments: Any) -> Any:
        return self.api.exec_lua(code, *arguments)

    def set_up(self, options: str = "") -> None:
        command = "{" + ", ".join(f"[=[{word}]=]" for word in LSP_COMMAND) + "}"
        self.lua(f"require('draftline').setup(vim.tbl_extend('force', {{cmd = {command}}}, {{{options}}}))")

    def open(self, name: str, text: str, seconds: float = 15) -> None:
        """A file of the workspace in a new buffer, the cursor in its last line; the engine is ready within seconds."""
        self.api.input("<Esc>")
        path = self.folder / name
        path.write_text(text, encoding="utf-8", newline="")
        self.api.command(f"edit {path}")
        self.lua("vim.api.nvim_win_set_cursor(0, {vim.api.nvim_buf_line_count(0), 0})")
        self.wait_for(lambda: self.lua("return #vim.lsp.get_clients({name='draftline', bufnr=0}) > 0 and 1 or nil"))
        self.wait_for(lambda: self.status().startswith("Draftline: ready"), seconds=seconds)

    def keys(self, *keys: str) -> None:
        """Each as one that is pressed, with what it causes done before the next."""
        for key in keys:
            self.api.input(key)
            self.api.eval("1")

    def type(self, text: str) -> None:
        self.keys(*(text.replace("<", "<lt>").replace("\n", "<CR>")))

    @property
    def lines(self) -> list[str]:
        return list(self.api.current.buffer[:])

    def ghost(self) -> str:
        """All that is drawn, as one text; empty when nothing is."""
        spaces = self.api.api.get_namespaces()
        shown = []
        for space in (spaces[name] for name in NAMESPACES if name in spaces):
            for *_, details in self.api.api.buf_get_extmarks(0, space, 0, -1, {"details": True}):
                rows = [details.get("virt_text", []), *details.get("virt_lines", [])]
                shown.append("\n".join("".join(chunk[0] for chunk in row) for row in rows))
        assert len(shown) < 2, shown
        return "".join(shown)

    def wait_ghost(self, text: str) -> None:
        self.wait_for(lambda: self.ghost() == text, lambda: f"the ghost text is {self.ghost()!r}, not {text!r}")

    def status(self) -> str:
        return str(self.lua("return require('draftline').status()"))

    def told(self) -> list[str]:
        return list(self.lua("return _G.told"))

    def logged(self, word: str) -> list[str]:
        """Lines of the language server's log that hold a word."""
        return [line for line in self.lua("return _G.logged") if word in line]

    def wait_for(
        self, condition: Callable[[], object], why: Callable[[], str] = lambda: "", seconds: float = 15
    ) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, why() or f"it did not happen in time; logged: {self.lua('return _G.logged')}"
            time.sleep(0.02)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.api.command("qall!")
        self.api.close()
