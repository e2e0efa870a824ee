"""The trainer: its schedule, its loss weights, and a rehearsal on a CPU from text to a file that completes."""

from __future__ import annotations

import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.errors import TrainingError
from models.export import export
from models.files import File, write_files
from models.network import REHEARSAL, Dimensions, exported, initial_weights
from models.train import DEPTH_WEIGHTS, Trainer, learning_rate, main, read_weights, target_weights
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.tokenizer import Tokenizer
from server.models_known import EMBEDDED, KNOWN_MODELS

ROOT = Path(__file__).parents[2]


def test_the_rate_warms_up_by_steps_stays_and_falls_to_two_percent_by_progress() -> None:
    assert learning_rate(0.0, 0, 1.0, decay=0.4) == pytest.approx(0.01)
    assert learning_rate(0.0, 49, 1.0, decay=0.4) == pytest.approx(0.5)
    assert learning_rate(0.3, 500, 2.0, decay=0.4) == pytest.approx(2.0)
    assert learning_rate(0.6, 500, 1.0, decay=0.4) == pytest.approx(1.0)
    assert learning_rate(0.8, 500, 1.0, decay=0.4) == pytest.approx(0.5)
    assert learning_rate(1.0, 500, 1.0, decay=0.4) == pytest.approx(0.02)
    assert learning_rate(0.6, 500, 1.0, decay=0.8) == pytest.approx(0.5)


def test_what_follows_a_middle_marker_weighs_five_until_the_end_token_is_due() -> None:
    #                     text  middle  x  x  end  text  end  text
    ids = torch.tensor([[5, 90, 6, 6, 91, 5, 91, 5], [5, 5, 91, 90, 6, 6, 6, 6]])
    assert target_weights(ids, middle=90, end=91).tolist() == [[1, 5, 5, 5, 1, 1, 1, 1], [1, 1, 1, 5, 5, 5, 5, 5]]


@pytest.fixture(scope="module")
def data(tokenizer_path: Path, text_files: Sequence[File], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ``models.corpus`` and ``models.train_tokenizer`` leave it."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copy(tokenizer_path, folder / "tokenizer.json")
    for name, files in (("train-00", text_files), ("heldout", text_files[::5])):
        write_files(files, folder / f"{name}.jsonl")
        (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress((folder / f"{name}.jsonl").read_bytes(), preset=0))
    return folder


def arguments(data: Path, out: Path, **changes: object) -> argparse.Namespace:
    values: dict[str, object] = {
        "data": data,
        "out": out,
        "train": ["train-00.jsonl.xz"],
        "length": 128,
        "batch": 2,
        "rate": 3e-3,
        "decay": 0.4,
        "seed": 1,
        "workers": 0,
        "held_out": 1,
        "start": None,
        "compile": False,
        "tiny": True,
    }
    return argparse.Namespace(**values | changes)


def test_a_few_steps_on_one_batch_lower_the_loss_of_the_trunk_and_of_every_draft(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trainer = Trainer(arguments(data, tmp_path))
    window = trainer.held_out[0].to(torch.int16).numpy()
    first, last = (trainer.step(window, 0.8, step) for step in (60, 61))
    for step in range(62, 65):
        last = trainer.step(window, 0.8, step)
    assert len(last[1]) == 1 + len(DEPTH_WEIGHTS) + 1
    for before, after in zip(first[1][:-1], last[1][:-1], strict=True):
        assert float(before) == pytest.approx(np.log(512), rel=0.05)
        assert float(after) < 0.97 * float(before)
    assert all(weight.grad is None for weight in trainer.weights.values())


def test_draft_depths_join_the_loss_as_training_goes_on(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(arguments(data, tmp_path))
    for progress, depths in ((0.0, 1), (0.4, 2), (0.9, 3)):
        total, losses = trainer.step(trainer.held_out[0].to(torch.int16).numpy(), progress, 0)
        assert len(losses) == 1 + depths + 1
        drafts = sum(w * float(loss) for w, loss in zip(DEPTH_WEIGHTS, losses[1:-1], strict=False))
        assert float(total) == pytest.approx(float(losses[0]) + drafts + float(losses[-1]), rel=1e-5)


def test_the_evaluation_counts_bits_of_bytes_and_drafts_that_agree(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(arguments(data, tmp_path))
    figures = trainer.evaluate()
    targets = trainer.held_out[0][:, 1:]
    size = int(trainer.byte_length[targets].sum())
    # An untrained model gives every token about the same probability.
    assert figures["bits_per_byte"] == pytest.approx(np.log2(512) * targets.numel() / size, rel=0.05)
    assert 0 <= figures["draft_3"] <= figures["draft_2"] <= figures["draft_1"] <= 1
    trainer.network.draft_hidden = lambda w, ids, hidden: trainer.network.hidden(w, ids)  # type: ignore[method-assign]
    agreeing = trainer.evaluate()
    assert agreeing["draft_1"] == 1
    assert agreeing["draft_2"] == pytest.approx(127 / 128)  # a chain of two can't end in the first row


def test_training_goes_on_from_the_shipped_file_as_from_its_weights() -> None:
    weights = read_weights(KNOWN_MODELS[EMBEDDED])
    fresh = initial_weights(Dimensions(), seed=0)
    assert {name: w.shape for name, w in weights.items()} == {name: w.shape for name, w in fresh.items()}
    file = ModelFile.open(KNOWN_MODELS[EMBEDDED])
    back = exported(weights)
    for name in ("blk.0.ssm_a", "blk.3.attn_q.weight"):
        assert torch.allclose(back[name], file.tensor(name), rtol=1e-6)


def test_held_out_text_shorter_than_a_batch_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="one batch takes"):
        Trainer(arguments(data, tmp_path, batch=1000))


def test_a_rehearsal_ends_with_a_log_and_weights_that_make_a_model_file(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "models.train", "--data", str(data), "--out", str(tmp_path / "run")]
    command += ["--tiny", "--minutes", "0.03", "--length", "128", "--batch", "2", "--workers", "1", "--held-out", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[0]["step"] == 1
    assert log[-1]["event"] == "end"
    assert log[-1]["step"] >= 3
    assert log[-1]["tokens"] == log[-1]["step"] * 2 * 129
    weights = torch.load(tmp_path / "run" / "weights.pt")
    export(weights, data / "tokenizer.json", tmp_path / "m.gguf", replace(REHEARSAL, vocab=512))
    file = ModelFile.open(tmp_path / "m.gguf")
    model, tokenizer = HybridModel.load(file), Tokenizer.from_file(file)
    hidden = model.prefill(tokenizer.encode("def "), model.new_state())
    assert torch.isfinite(model.logits(hidden)).all()
    assert not list((tmp_path / "run").glob("*.partial"))


def test_missing_text_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--data", str(tmp_path), "--out", str(tmp_path / "run")])
    assert main() == 1
    said = capsys.readouterr().err
    assert said.startswith("train: ")
    assert said.count("\n") == 1
    assert "models.corpus" in said
