"""What ``draftline setup nvim`` writes is what a real Neovim starts with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from neovim import install_nvim


@pytest.mark.parametrize("existing", [None, "init.lua", "init.vim"])
def test_a_neovim_with_the_configuration_that_setup_wrote_has_the_plugin(
    version: str, tmp_path: Path, existing: str | None
) -> None:
    (tmp_path / "nvim").mkdir()
    if existing:
        (tmp_path / "nvim" / existing).write_text(
            "vim.g.mine = 1\n" if existing == "init.lua" else "let g:mine = 1\n", encoding="utf-8"
        )
    places = {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVIM")} | places
    command = [sys.executable, "-P", "-E", "-m", "server.cli", "setup", "nvim", "--yes"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    said = "vim.g.mine or 0, ' ', vim.fn.exists(':Draftline'), ' ', require('draftline.config').current.cmd[2]"
    ask = f"lua io.write({said})"
    done = subprocess.run(
        [install_nvim.program(version), "--headless", "-i", "NONE", "-n", "-c", ask, "-c", "qall!"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{1 if existing else 0} 2 lsp"
    assert done.stderr == ""
