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
from typing import Any

import numpy as np
import pytest
import torch

from models.errors import TrainingError
from models.export import export
from models.files import File, write_files
from models.loops import CONTINUATION
from models.network import REHEARSAL, Dimensions, exported, initial_weights
from models.train import (
    DEPTH_WEIGHTS,
    PROMPTS,
    UNLIKELIHOOD,
    Trainer,
    learning_rate,
    read_weights,
    target_weights,
)
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
        "against_loops": False,
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
    assert len(last[1]) == 1 + len(DEPTH_WEIGHTS)
    for before, after in zip(first[1], last[1], strict=True):
        assert float(before) == pytest.approx(np.log(512), rel=0.05)
        assert float(after) < 0.97 * float(before)
    assert all(weight.grad is None for weight in trainer.weights.values())


def test_draft_depths_join_the_loss_as_training_goes_on(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(arguments(data, tmp_path))
    for progress, depths in ((0.0, 1), (0.4, 2), (0.9, 3)):
        total, losses, loops_lost = trainer.step(trainer.held_out[0].to(torch.int16).numpy(), progress, 0)
        assert len(losses) == 1 + depths
        drafts = sum(w * float(loss) for w, loss in zip(DEPTH_WEIGHTS, losses[1:], strict=False))
        assert float(total) == pytest.approx(float(losses[0]) + drafts, rel=1e-5)
        assert float(loops_lost) == 0


def test_a_run_that_goes_on_from_weights_makes_all_drafts_from_its_first_step(data: Path, tmp_path: Path) -> None:
    first = Trainer(arguments(data, tmp_path))
    first.save()
    trainer = Trainer(arguments(data, tmp_path, start=tmp_path / "weights.pt"))
    _, losses, _ = trainer.step(trainer.held_out[0].to(torch.int16).numpy(), 0.0, 0)
    assert len(losses) == 1 + len(DEPTH_WEIGHTS)


def certain(trainer: Trainer) -> None:
    """Makes a fresh model fairly sure of what it says."""
    with torch.no_grad():
        trainer.weights["output_norm.weight"].mul_(8)


@pytest.mark.parametrize(("pool", "share"), [(6, 1.0), (3, 0.5)])
def test_own_loops_add_the_gradient_of_their_tokens_unlikelihood_and_half_the_loops_half_of_it(
    pool: int, share: float, data: Path, tmp_path: Path
) -> None:
    trainer = Trainer(arguments(data, tmp_path, against_loops=True))
    certain(trainer)
    assert trainer.loops is not None
    generator = torch.Generator().manual_seed(4)
    # Pairs: a fresh model says the token that it has just read again.
    ids = torch.randint(0, 512, (pool, (128 + CONTINUATION) // 2), generator=generator).repeat_interleave(2, 1)
    mask = torch.rand(pool, CONTINUATION, generator=generator) < 0.1
    trainer.loops.ids, trainer.loops.mask = ids, mask
    loss = trainer.unlearn(6)
    logits = trainer.network.hidden(trainer.weights, ids) @ trainer.weights["token_embd.weight"].T
    p = torch.softmax(logits[:, :-1].double(), -1).gather(-1, ids[:, 1:, None])[:, -CONTINUATION:, 0]
    expected = share * -torch.log1p(-p)[mask].mean()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert float(loss) > 0.1 * share
    for name in ("blk.0.attn_qkv.weight", "token_embd.weight"):
        (gradient,) = torch.autograd.grad(UNLIKELIHOOD * expected, trainer.weights[name], retain_graph=True)
        got = trainer.weights[name].grad
        assert got is not None
        assert (got - gradient).norm() < 1e-3 * gradient.norm()


def test_a_step_against_loops_takes_some_of_its_models_and_adds_their_unlikelihood_to_the_loss(
    data: Path, tmp_path: Path
) -> None:
    trainer = Trainer(arguments(data, tmp_path, against_loops=True))
    certain(trainer)
    assert trainer.loops is not None
    before = trainer.weights["blk.0.attn_qkv.weight"].detach().clone()
    total, losses, loops_lost = trainer.step(trainer.held_out[0].to(torch.int16).numpy(), 0.0, 60)
    assert len(trainer.loops.ids) > 0
    assert trainer.loops.share > 0
    assert float(loops_lost) > 0.01
    parts = float(losses[0]) + DEPTH_WEIGHTS[0] * float(losses[1]) + UNLIKELIHOOD * float(loops_lost)
    assert float(total) == pytest.approx(parts, rel=1e-5)
    assert all(weight.grad is None for weight in trainer.weights.values())
    assert not torch.equal(before, trainer.weights["blk.0.attn_qkv.weight"])


def test_the_evaluation_against_loops_counts_continuations_of_held_out_text_that_loop(
    data: Path, tmp_path: Path
) -> None:
    trainer = Trainer(arguments(data, tmp_path, against_loops=True))
    text = torch.cat([window.flatten() for window in trainer.held_out])
    prompts = trainer.held_out_prompts()
    assert len(prompts) == PROMPTS * 2
    assert torch.equal(prompts[0], text[:128])
    assert torch.equal(prompts[-1], text[-128:])

    def generate(prompts: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(CONTINUATION).repeat(len(prompts), 1)
        ids[::4] = 7  # loops
        ids[1::4, 64:] = 7  # after the tokens that count
        return ids

    trainer.generate = generate  # type: ignore[method-assign]
    assert trainer.evaluate()["loops"] == 0.25


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


def rehearsal(data: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Runs the command into ``folder``/run -> the lines of its log."""
    command = [sys.executable, "-P", "-m", "models.train", "--data", str(data), "--out", str(folder / "run"), *options]
    command += ["--tiny", "--minutes", "0.03", "--length", "128", "--batch", "2", "--workers", "1", "--held-out", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]


def test_a_rehearsal_ends_with_a_log_and_weights_that_make_a_model_file(data: Path, tmp_path: Path) -> None:
    log = rehearsal(data, tmp_path)
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


def test_a_rehearsal_against_loops_logs_how_many_continuations_loop(data: Path, tmp_path: Path) -> None:
    log = rehearsal(data, tmp_path, "--against-loops")
    assert log[0]["step"] == 1
    assert 0 < log[0]["loops"] <= 1
    assert log[0]["unlikelihood"] > 0
    assert log[-1]["event"] == "end"
    assert 0 <= log[-1]["loops"] <= 1
