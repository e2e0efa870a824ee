"""Which Python ``make`` sets the environment up with, and what it says of one that is too old."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent.parent / "Makefile"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints-cpu.txt"):
        shutil.copy(MAKEFILE.with_name(name), tmp_path)
    (tmp_path / "editors").mkdir()
    for included in (MAKEFILE.parent / "editors").glob("*.mk"):
        shutil.copy(included, tmp_path / "editors")
    return tmp_path


def python(path: Path, version: str) -> Path:
    """A program that says it is this Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = tuple(map(int, version.split(".")))
    program = f"import sys; sys.version_info = {numbers}; exec(sys.argv[1])"
    path.write_text(
        f"#!/bin/sh\n[ $1 = -V ] && echo Python {version} && exit\n"
        f"[ $1 = -c ] && exec {sys.executable} -c '{program}' \"$2\"\nexit 1\n"
    )
    path.chmod(0o755)
    return path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON" and "MAKE" not in name}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def set_up(folder: Path, version: str) -> None:
    """An environment as an earlier ``make`` left it."""
    python(folder / ".venv" / "bin" / "python", version)
    (folder / ".venv" / "installed").touch()


@pytest.mark.parametrize("asked", ["3.10", None])
def test_a_python_that_is_too_old_or_missing_is_one_line_and_no_environment(checkout: Path, asked: str | None) -> None:
    program = python(checkout / "python3.10", asked) if asked else checkout / "nowhere"
    done = make(checkout, "demo", f"PYTHON={program}")
    told = f"Python {asked}" if asked else "missing"
    line = f"Draftline needs Python 3.11 or newer, and {program} is {told}; name another: make demo PYTHON=python3.11"
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == line
    assert "pip" not in done.stdout
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("had", "asked", "anew"),
    [
        ("3.10", HERE, True),  # left by an older make that didn't look
        ("3.10", None, True),
        ("3.98", "3.99", True),
        ("3.98", "3.98", False),
        ("3.98", None, False),  # whatever python3 is now
    ],
)
def test_an_environment_of_another_python_is_made_anew(checkout: Path, had: str, asked: str | None, anew: bool) -> None:
    set_up(checkout, had)
    arguments = [f"PYTHON={python(checkout / 'asked', asked)}"] if asked else []
    done = make(checkout, "-n", "install", *arguments)
    assert done.returncode == 0, done.stderr
    assert (" -m venv --clear .venv" in done.stdout) == anew
    assert (" -m pip install " in done.stdout) == anew


def test_an_environment_that_somebody_began_is_kept(checkout: Path) -> None:
    """A CPU build of PyTorch may be in it already."""
    set_up(checkout, "3.98")
    (checkout / ".venv" / "installed").unlink()
    done = make(checkout, "-n", "install")
    assert " -m venv " not in done.stdout
    assert " -m pip install " in done.stdout
