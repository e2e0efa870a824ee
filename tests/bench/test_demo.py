"""``make demo``: a real completion with the embedded model, through the language server, in one command."""

import json
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
