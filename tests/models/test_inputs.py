"""The commands of ``models/README.md`` in a fresh clone, where nothing has been built."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent.parent / "models" / "README.md"


def commands() -> list[str]:
    """Every command but the one that downloads the corpus, which needs nothing."""
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (" ".join(line.split()) for line in text.splitlines() if line.startswith("python -P -m models."))
    return sorted({line for line in lines if "models.corpus" not in line})


@pytest.mark.parametrize("command", commands())
def test_a_command_without_what_it_reads_is_one_line_that_says_what_makes_it(tmp_path: Path, command: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "draftline-python-56m.gguf").touch()
    before = sorted(tmp_path.rglob("*"))
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    name = words[3].removeprefix("models.")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith(f"{name}: ")
    assert "build/models" in done.stderr
    assert any(f"models.{maker}" in done.stderr for maker in ("corpus", "train_tokenizer", "train", "export"))
    assert sorted(tmp_path.rglob("*")) == before


def test_there_are_commands() -> None:
    names = {command.split()[3].removeprefix("models.") for command in commands()}
    assert names >= {"evaluate", "export", "memorised", "notice", "train", "train_tokenizer"}
