"""``make demo``: a real completion with the embedded model, through the language server, in one command."""

import json
import os
import subprocess
import sys

import pytest

from bench.demo import FIELDS

NUMBERS = FIELDS[2:]


@pytest.mark.timeout(300)
def test_the_demo_shows_a_completion_with_its_figures(tmp_path):
    command = [sys.executable, "-P", "-m", "bench.demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert tuple(shown) == FIELDS
    assert shown["reason"] == "shown"
    assert shown["text"].strip()
    assert all(isinstance(shown[name], int | float) for name in NUMBERS)
    assert shown["prefilled"] > 100
    assert shown["reused"] == 0
    assert 0 <= shown["accepted"] <= shown["drafted"]
    assert shown["ttft_ms"] > 0
    assert done.stderr == ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("DRAFTLINE_MODEL", "/nowhere.gguf", "there is no model file /nowhere.gguf"),
        ("DRAFTLINE_MODEL", __file__, f"{__file__} is not a GGUF file"),
        ("TMPDIR", "{folder}", "set TMPDIR to a shorter directory"),
    ],
)
def test_a_demo_that_cannot_work_ends_at_once_with_one_line(tmp_path, variable, value, why):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench.demo"],
        cwd=tmp_path,
        env=os.environ | {variable: value.format(folder=folder)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("the demo failed: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
