"""20,000 damaged files end in success or a typed error, in bounded time and memory."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden_files import FOLDER

from server.gguf.reader import ModelFile
from server.gguf.writer import NewTensor, write_model_file

MUTANTS = 20_000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def with_vocabulary(tmp_path: Path) -> Path:
    """A golden file with a small vocabulary and a value of every kind, which the golden files themselves lack."""
    source = ModelFile.open(FOLDER / "hybrid-b-Q2_K.gguf")
    metadata = dict(source.metadata) | {
        "tokenizer.ggml.tokens": [f"token {i} é" for i in range(256)],
        "tokenizer.ggml.token_type": [1] * 255 + [3],
        "tokenizer.ggml.merges": [f"{i} {i + 1}" for i in range(200)],
        "tokenizer.ggml.add_bos_token": False,
        "qwen35.attention.recurrent_layers": [True, False, False],
        "general.sampling.temp": 0.7,
        "general.alignment": 32,
        "wide": 1 << 40,
        "negative": [-1, -2],
    }
    tensors = {name: NewTensor.stored(source.raw(name), info.type, info.shape) for name, info in source.tensors.items()}
    path = tmp_path / "vocabulary.gguf"
    write_model_file(path, metadata, tensors)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="address space is capped and measured as on Linux")
@pytest.mark.timeout(300)
def test_damaged_files_give_nothing_but_success_or_a_typed_error(tmp_path: Path, with_vocabulary: Path) -> None:
    bases = [*sorted(FOLDER.glob("hybrid-*.gguf")), with_vocabulary]
    command = [sys.executable, Path(__file__).with_name("fuzz_headers.py"), *bases]
    ran = subprocess.run(
        [*map(str, command), "--count", str(MUTANTS), "--folder", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    reached = (tmp_path / "current").read_text().strip()
    assert ran.returncode == 0, f"at mutant {reached} (exit {ran.returncode}):\n{ran.stdout}{ran.stderr}"
    outcomes = ast.literal_eval(ran.stdout)
    assert sum(outcomes.values()) == MUTANTS
    expected = {"opened", "TruncatedFile", "CorruptFile", "UnsupportedTensorType", "WrongMetadata", "MissingMetadata"}
    assert "error that doesn't name the file" not in outcomes
    assert expected <= outcomes.keys()  # the damage reaches every part of a header
