"""``draftline setup`` as a process in a home of its own: what it shows, asks, writes and leaves alone."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from server.setup.recipes import RECIPES

COMMAND = [sys.executable, "-P", "-E", "-m", "server.cli", "setup"]
FILES = {
    "vscode": ".config/Code/User/settings.json",
    "nvim": ".config/nvim/init.lua",
    "helix": ".config/helix/languages.toml",
    "zed": ".config/zed/settings.json",
    "emacs": ".emacs.d/init.el",
    "sublime": ".config/sublime-text/Packages/User/LSP.sublime-settings",
}

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="the files are elsewhere there")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def setup(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def environment(home: Path) -> dict[str, str]:
    others = ("HOME", "XDG_CONFIG_HOME", "NVIM_APPNAME")
    return {name: value for name, value in os.environ.items() if name not in others} | {"HOME": str(home)}


def snapshot(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_every_editor_has_its_file() -> None:
    assert FILES.keys() == RECIPES.keys()


@pytest.mark.parametrize("editor", FILES)
def test_it_writes_the_file_and_a_second_time_nothing(home: Path, editor: str) -> None:
    done = setup(home, editor, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    path = home / FILES[editor]
    assert set(snapshot(home)) == {path}
    text = path.read_text(encoding="utf-8")
    assert all(f"+{line}" in done.stdout.splitlines() for line in text.splitlines())
    if editor == "helix":
        assert tomllib.loads(text)["language-server"]["draftline"]["args"] == ["lsp"]
    elif path.suffix in (".json", ".sublime-settings"):
        json.loads(text)
    again = setup(home, editor, "--yes")
    assert again.returncode == 0
    assert "is set up already" in again.stdout
    assert path.read_text(encoding="utf-8") == text


def test_without_anybody_to_ask_it_shows_the_change_and_writes_nothing(home: Path) -> None:
    done = setup(home, "nvim")
    assert done.returncode == 1
    assert "+require('draftline').setup {" in done.stdout
    assert "--yes" in done.stderr
    assert snapshot(home) == {}


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("\n", False), ("no\n", False), ("\x04", False)])
def test_at_a_terminal_it_asks_and_only_a_yes_writes(home: Path, answer: str, written: bool) -> None:
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, "nvim"], env=environment(home), stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.write(leader, answer.encode())
        out, _ = process.communicate(timeout=60)
    finally:
        os.close(leader)
        os.close(follower)
    assert b"Write this to " in out
    assert process.returncode == (0 if written else 1)
    assert bool(snapshot(home)) == written


@pytest.mark.parametrize(
    ("editor", "text", "why"),
    [
        ("zed", '// Zed settings\n{\n  "vim_mode": true\n}\n', "has comments"),
        ("zed", '{"languages": {"Python": {"language_servers": ["ruff"]}}}', "languages.Python.language_servers"),
        ("sublime", '{\n  "a": 1,\n}\n', "plain JSON"),
        ("nvim", "local M = {}\nreturn M\n", "returns something"),
        ("nvim", "require('draftline').setup {}\n", "mentions draftline already"),
        ("helix", '[[language]]\nname = "python"\nauto-format = true\n', "has a language python already"),
        ("helix", "[[language\n", "valid TOML"),
        ("emacs", ";; >>> draftline setup\n", "not its end"),
    ],
)
def test_a_file_that_can_not_be_changed_safely_stays_and_the_lines_are_shown(
    home: Path, editor: str, text: str, why: str
) -> None:
    path = home / FILES[editor]
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    done = setup(home, editor, "--yes")
    assert done.returncode == 1
    assert why in done.stderr
    assert "draftline" in done.stdout
    assert snapshot(home) == {path: text.encode()}


def test_a_link_stays_one_and_the_mode_of_the_file_too(home: Path) -> None:
    real = home / "dotfiles" / "init.lua"
    real.parent.mkdir()
    real.write_text("vim.o.number = true\n", encoding="utf-8")
    real.chmod(0o640)
    link = home / FILES["nvim"]
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert setup(home, "nvim", "--yes").returncode == 0
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8").startswith("vim.o.number = true\n\n-- >>> draftline setup\n")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert {path.name for path in real.parent.iterdir()} == {"init.lua"}


def test_an_init_vim_gets_lua_commands_and_no_init_lua_beside_it(home: Path) -> None:
    path = home / ".config/nvim/init.vim"
    path.parent.mkdir(parents=True)
    path.write_text("set number\n", encoding="utf-8")
    assert setup(home, "nvim", "--yes").returncode == 0
    assert set(snapshot(home)) == {path}
    assert "\nlua require('draftline').setup {" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("content", "why"), [(b"\xff\xfe", "isn't UTF-8"), (None, "can't be read")])
def test_a_file_that_can_not_be_read_is_one_line(home: Path, content: bytes | None, why: str) -> None:
    path = home / FILES["nvim"]
    if content is None:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    done = setup(home, "nvim", "--yes")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert why in done.stderr


def test_a_folder_that_can_not_be_made_is_one_line(home: Path) -> None:
    (home / ".config").write_text("a file", encoding="utf-8")
    done = setup(home, "nvim", "--yes")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_without_an_editor_it_says_how_each_is_set_up_and_writes_nothing(home: Path) -> None:
    setup(home, "emacs", "--yes")
    zed = home / FILES["zed"]
    zed.parent.mkdir(parents=True)
    zed.write_text("// mine\n{}\n", encoding="utf-8")
    before = snapshot(home)
    done = setup(home)
    states = {line.split()[0]: line.partition(": ")[2] for line in done.stdout.splitlines()}
    assert (states["emacs"], states["nvim"]) == ("set up", "not set up")
    assert states["zed"] == "to be set up by hand: it has comments or isn't plain JSON"
    assert states.keys() == FILES.keys()
    assert snapshot(home) == before


def test_an_editor_that_is_not_known_is_told_with_those_that_are(home: Path) -> None:
    done = setup(home, "nano")
    assert done.returncode == 2
    assert "'nvim'" in done.stderr
