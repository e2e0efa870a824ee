"""Synthetic model files: what is in them, that a seed settles every byte, and what is refused."""

import errno
import os
import shutil
import threading
from collections import namedtuple
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.model.config import ModelConfig
from server.model.tokenizer import Tokenizer
from server.synth import weights, write
from server.synth.errors import TooLittleSpace, UnusableTarget
from server.synth.mixes import MIXES, mix_types
from server.synth.presets import PRESETS, Preset, tensor_shapes
from server.synth.weights import random_tensors
from server.synth.write import write_synthetic_model

TINY = PRESETS["tiny"]


def written(path: Path, preset: Preset = TINY, mix: str = "q4_k_m", seed: int = 0) -> ModelFile:
    write_synthetic_model(path, preset, MIXES[mix], seed)
    return ModelFile.open(path)


@pytest.mark.parametrize("preset", [TINY, replace(TINY, tied=True, mtp=False, layers=8)], ids=["tiny", "tied, no MTP"])
@pytest.mark.parametrize("mix", ["f16", "q8_0", "q4_k_m"])
def test_a_file_has_the_dimensions_and_the_types_that_were_asked_for(tmp_path, preset: Preset, mix: str) -> None:
    file = written(tmp_path / "m.gguf", preset, mix)
    config = ModelConfig.from_file(file)
    assert {f.name: getattr(preset, f.name) for f in fields(ModelConfig) if f.name != "eps"} == {
        f.name: getattr(config, f.name) for f in fields(ModelConfig) if f.name != "eps"
    }
    assert config.eps == pytest.approx(preset.eps)
    assert {name: info.type for name, info in file.tensors.items()} == mix_types(MIXES[mix], preset)
    assert {name: info.shape for name, info in file.tensors.items()} == tensor_shapes(preset)
    assert len(Tokenizer.from_file(file)) == preset.vocab


def test_a_file_says_that_it_is_synthetic(tmp_path) -> None:
    file = written(tmp_path / "m.gguf", seed=7)
    assert file.value("draftline.synthetic", bool) is True
    assert file.value("draftline.preset", str) == "tiny"
    assert file.value("draftline.mix", str) == "q4_k_m"
    assert file.value("draftline.seed", int) == 7
    assert file.value("general.file_type", int) == 15
    assert "synthetic" in file.value("general.name", str)
    assert "random weights" in file.value("general.name", str)


def test_the_header_of_the_largest_preset_takes_about_ten_megabytes(tmp_path) -> None:
    metadata = write.synthetic_metadata(PRESETS["27b"], 0)
    write.write_model_file(tmp_path / "header.gguf", metadata, {})
    assert 8e6 < (tmp_path / "header.gguf").stat().st_size < 11e6


def test_a_seed_settles_every_byte_however_many_threads_there_are(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 100_000)
    written(tmp_path / "a.gguf")
    monkeypatch.setattr(write, "MAX_THREADS", 1)
    monkeypatch.setattr(write, "AHEAD_BYTES", 0)
    written(tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    other = written(tmp_path / "c.gguf", seed=1)
    file = ModelFile.open(tmp_path / "a.gguf")
    assert not any(torch.equal(file.raw(name), other.raw(name)) for name in file.tensors)


def test_no_row_and_no_vector_of_a_file_repeats(tmp_path, monkeypatch) -> None:
    """Pieces and tensors have numbers of their own, and norms aren't all the same."""
    monkeypatch.setattr(weights, "PIECE_BYTES", 10_000)
    file = written(tmp_path / "m.gguf")
    rows = [row.numpy().tobytes() for name in file.tensors for row in file.raw(name).unbind(0)]
    assert len(set(rows)) == len(rows)
    for name, info in file.tensors.items():
        if len(info.shape) == 1:
            assert file.tensor(name).unique().numel() == info.shape[0]


def test_decays_and_time_steps_cover_their_ranges(tmp_path) -> None:
    file = written(tmp_path / "m.gguf", replace(TINY, key_heads=4, value_heads=16))
    a, bias = file.tensor("blk.0.ssm_a"), file.tensor("blk.0.ssm_dt.bias")
    assert -16 < float(a.min()) < -8
    assert -0.15 < float(a.max()) < -0.05
    steps = torch.nn.functional.softplus(bias)
    assert 0.001 <= float(steps.min()) < 0.002
    assert 0.05 < float(steps.max()) <= 0.1


def test_what_is_made_ahead_is_bounded(monkeypatch) -> None:
    """The writer takes its time; meanwhile no more than AHEAD_BYTES wait for it, and something always does."""
    monkeypatch.setattr(write, "AHEAD_BYTES", 1_000_000)
    tensors = random_tensors(TINY, mix_types(MIXES["q4_k_m"], TINY), 0)
    lock, started = threading.Lock(), []

    def fill(self, piece: int, data: np.ndarray) -> None:
        with lock:
            started.append(self)

    monkeypatch.setattr(weights.RandomTensor, "fill", fill)
    threads = write.ThreadPoolExecutor(2)
    workshop = write._Workshop(tensors, threads)
    taken = 0
    ahead = []
    for tensor in tensors:
        assert workshop.next().numel() == tensor.nbytes
        taken += 1
        ahead.append(sum(len(data) for data, _ in workshop._started))
    threads.shutdown()
    assert max(ahead) <= 1_000_000
    assert sum(size > 500_000 for size in ahead) > taken // 2
    assert [t.name for t in tensors] == list(dict.fromkeys(t.name for t in started))


def test_an_existing_file_is_left_alone(tmp_path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("mine")
    with pytest.raises(UnusableTarget, match=r"m\.gguf exists already"):
        written(path)
    assert path.read_text() == "mine"
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UnusableTarget, match="exists already"):
        written(link)


def test_a_missing_folder_is_named(tmp_path) -> None:
    with pytest.raises(UnusableTarget, match="there is no folder"):
        written(tmp_path / "none" / "m.gguf")


def test_too_little_space_is_told_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(16_000_000_000))
    with pytest.raises(TooLittleSpace, match=r"takes up to 16\.82 GB, and 16\.00 GB are free in "):
        written(tmp_path / "m.gguf", PRESETS["27b"])
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_no_file(tmp_path, monkeypatch) -> None:
    def full(self) -> torch.Tensor:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write._Workshop, "next", full)
    with pytest.raises(UnusableTarget, match="No space left on device"):
        written(tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_types_may_be_chosen_tensor_by_tensor(tmp_path) -> None:
    kinds = [TensorType.BF16, TensorType.Q5_K, TensorType.F16, TensorType.F32]
    types = {
        name: kinds[i % 4] if len(shape) == 2 and "conv" not in name else TensorType.F32
        for i, (name, shape) in enumerate(tensor_shapes(TINY).items())
    }
    write.write_random_model(tmp_path / "m.gguf", TINY, types, write.synthetic_metadata(TINY, 0))
    assert {name: info.type for name, info in ModelFile.open(tmp_path / "m.gguf").tensors.items()} == types
