"""Kept prefixes in a file: they outlive the engine, and whatever happens to the file costs time only."""

import errno
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from damage import damaged
from tiny_model import write_tiny_model

from server.cache import disk
from server.cache.disk import MAGIC, SUFFIX, TEMPORARY, CacheFile, identity
from server.cache.prefix import PrefixCache, prefill_step
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.state import SequenceState

PLENTY = 10**9
VOCABULARY = 300
TEXTS = [[n, *[(37 * i * i + 11 * i + 5) % 250 for i in range(200)], *[n + 1] * 90] for n in range(3)]
TEXTS += [[*TEXTS[0][:150], 9, *range(100)]]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=3)


@pytest.fixture(scope="module")
def model(model_path: Path) -> HybridModel:
    return HybridModel.load(ModelFile.open(model_path), dtype=torch.float64)


def prefilled(model: HybridModel, cache: PrefixCache, ids: list[int]) -> tuple[SequenceState, int]:
    sequence, reused = cache.take(ids)
    while prefill_step(model, sequence, ids, ()):
        pass
    cache.give_back(sequence)
    return sequence.state, reused


def filled(model: HybridModel) -> PrefixCache:
    cache = PrefixCache(model.new_state, PLENTY)
    for ids in TEXTS:
        prefilled(model, cache, ids)
    return cache


@pytest.fixture(scope="module")
def cold(model: HybridModel) -> list[torch.Tensor]:
    return [prefilled(model, PrefixCache(model.new_state, 0), ids)[0].last_hidden for ids in TEXTS]


@pytest.fixture(scope="module")
def written(model: HybridModel, tmp_path_factory: pytest.TempPathFactory) -> CacheFile:
    """A file as an engine leaves it; tests copy it."""
    file = CacheFile(tmp_path_factory.mktemp("cache"), bytes(32))
    file.save(filled(model).most_valuable(PLENTY))
    return file


@pytest.fixture
def file(written: CacheFile, tmp_path: Path) -> CacheFile:
    copy = CacheFile(tmp_path, bytes(32))
    shutil.copy(written.path, copy.path)
    return copy


def check_texts(model: HybridModel, file: CacheFile, cold: list[torch.Tensor]) -> int:
    """Prompts on what is found have the states of fresh ones -> tokens reused."""
    cache = PrefixCache(model.new_state, PLENTY)
    cache.restore(file.load(model.new_state, VOCABULARY, PLENTY))
    total = 0
    for ids, wanted in zip(TEXTS, cold, strict=True):
        state, reused = prefilled(model, cache, ids)
        assert torch.allclose(state.last_hidden, wanted, atol=1e-9, rtol=0)
        total += reused
    return total


def test_what_one_engine_kept_the_next_one_finds(
    model: HybridModel, file: CacheFile, cold: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    assert check_texts(model, file, cold) == sum(map(len, TEXTS))
    assert not caplog.records
    assert file.path.stat().st_mode & 0o777 == 0o600, "it holds what was edited"


def check_damage(model: HybridModel, file: CacheFile, cold: list[torch.Tensor], rounds: int = 60) -> int:
    """Bytes flipped, parts cut off, left out and repeated anywhere -> in how many of the files something was found."""
    whole, rng, some = file.path.read_bytes(), random.Random(1), 0
    for n in range(rounds):
        file.path.write_bytes(damaged(whole, rng, n))
        reused = check_texts(model, file, cold)
        some += 0 < reused < sum(map(len, TEXTS))
    return some


def test_a_damaged_file_costs_time_only(
    model: HybridModel, file: CacheFile, cold: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    assert check_damage(model, file, cold) > 15, "what is sound in it is used"
    assert len(caplog.records) <= 60, "one line a file"
    for record in caplog.records:
        assert "ignored" in record.getMessage()
        assert "\n" not in record.getMessage()
        assert not record.exc_info


def test_planted_blocks_without_a_check_are_noticed(
    model: HybridModel, file: CacheFile, cold: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CacheFile, "_digest", lambda self, index, body: bytes(16))
    file.save(filled(model).most_valuable(PLENTY))
    with pytest.raises(AssertionError):
        check_damage(model, file, cold)


def other_model(file: CacheFile) -> None:
    before = file.path
    file.__init__(before.parent, bytes([1] * 32))  # type: ignore[misc]
    before.rename(file.path)


def newer_format(file: CacheFile) -> None:
    file.path.write_bytes(file.path.read_bytes().replace(MAGIC, MAGIC.replace(b"1\n", b"2\n"), 1))


def foreign(file: CacheFile) -> None:
    file.path.write_text("something else\n" * 100)


def empty(file: CacheFile) -> None:
    file.path.write_bytes(b"")


def folder(file: CacheFile) -> None:
    file.path.unlink()
    file.path.mkdir()


@pytest.mark.parametrize("change", [other_model, newer_format, foreign, empty, folder])
def test_a_file_that_is_not_this_models_is_ignored_with_one_line(
    model: HybridModel, file: CacheFile, caplog: pytest.LogCaptureFixture, change: Callable[[CacheFile], None]
) -> None:
    change(file)
    assert not list(file.load(model.new_state, VOCABULARY, PLENTY).nodes())
    assert len(caplog.records) == 1
    assert "are ignored: " in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_what_another_model_would_hold_is_refused_even_with_a_right_checksum(
    file: CacheFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=3, head_dim=16)
    wrong = HybridModel.load(ModelFile.open(other), dtype=torch.float64)
    assert not list(file.load(wrong.new_state, VOCABULARY, PLENTY).nodes())
    assert "can't be read" in caplog.text


def test_no_file_is_nothing_to_tell(model: HybridModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not list(CacheFile(tmp_path / "none", bytes(32)).load(model.new_state, VOCABULARY, PLENTY).nodes())
    assert not caplog.records


def test_an_identity_changes_with_the_model_and_with_what_computes(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy2(model_path, path)
    found = path.stat()
    same = identity(path, "cpu")
    assert same == identity(path, "cpu") == identity(model_path, "cpu") != identity(path, "cuda")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_mtime_ns == found.st_mtime_ns
    assert identity(path, "cpu") != same, "of the same size and time, but not the same"


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_full_disk_is_one_line_and_leaves_the_file_before(
    model: HybridModel, file: CacheFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, after: int
) -> None:
    before = file.path.read_bytes()
    write, blocks = CacheFile._write_block, []

    def full(self: CacheFile, *arguments: object) -> None:
        blocks.append(arguments)
        if len(blocks) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CacheFile, "_write_block", full)
    file.save(filled(model).most_valuable(PLENTY))
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text
    assert file.path.read_bytes() == before
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_a_folder_that_cannot_be_written_is_one_line(
    model: HybridModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        caplog.clear()
        CacheFile(place, bytes(32)).save(filled(model).most_valuable(PLENTY))
        assert len(caplog.records) == 1
        assert "can't be written" in caplog.text


def test_a_write_that_was_killed_leaves_the_file_before_and_its_rest_goes(
    model: HybridModel, file: CacheFile, cold: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(os, "fsync", lambda number: os._exit(0))
        file.save([])
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(file.path.parent.glob(f"*{TEMPORARY}"))
    assert check_texts(model, file, cold) == sum(map(len, TEXTS))
    assert not list(file.path.parent.glob(f"*{TEMPORARY}"))


def test_a_file_that_another_engine_writes_is_left_to_it(
    model: HybridModel, file: CacheFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two engines with one folder: one starts while the other ends."""
    write = CacheFile._write

    def start_meanwhile(self: CacheFile, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]
        for n in range(2):
            CacheFile(file.path.parent, bytes([n] * 32)).load(model.new_state, VOCABULARY, PLENTY)

    monkeypatch.setattr(CacheFile, "_write", start_meanwhile)
    file.path.unlink()
    file.save(filled(model).most_valuable(PLENTY))
    assert file.path.exists()
    assert not caplog.records


def test_two_engines_that_make_room_at_once_are_no_error(
    model: HybridModel, file: CacheFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others = [CacheFile(file.path.parent, bytes([n] * 32)) for n in (1, 2)]
    glob, nodes = Path.glob, filled(model).most_valuable(PLENTY)
    for other in others:
        other.save(nodes)

    def taken(self: Path, pattern: str) -> list[Path]:
        found = list(glob(self, pattern))
        others[0].path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", taken)
    CacheFile(file.path.parent, bytes(32), 1000).save(nodes)
    assert not caplog.records
    monkeypatch.undo()
    assert list(file.path.parent.iterdir()) == [file.path]


def test_a_file_holds_its_budget_with_what_is_worth_most(model: HybridModel, tmp_path: Path) -> None:
    cache = filled(model)
    whole = cache.most_valuable(PLENTY)
    bytes_of = sum(node.nbytes if kept else node.rows_nbytes for node, kept in whole)
    for share in (0.9, 0.5, 0.2, 0.0):
        file = CacheFile(tmp_path, bytes(32))
        file.save(cache.most_valuable(int(share * bytes_of)))
        assert file.path.stat().st_size <= share * bytes_of + 1000
        again = PrefixCache(model.new_state, PLENTY)
        again.restore(file.load(model.new_state, VOCABULARY, PLENTY))
        reused = prefilled(model, again, TEXTS[-1])[1]
        assert reused == len(TEXTS[-1]) if share >= 0.5 else reused <= len(TEXTS[-1])
    smaller = PrefixCache(model.new_state, bytes_of // 3)
    file.save(whole)
    smaller.restore(file.load(model.new_state, VOCABULARY, smaller.budget))
    assert 0 < smaller.nbytes <= smaller.budget


@pytest.mark.parametrize("n", range(len(TEXTS)))
def test_a_smaller_cache_finds_the_text_that_was_used_last(model: HybridModel, tmp_path: Path, n: int) -> None:
    """And so does one that finds the end of the file damaged."""
    cache, file = filled(model), CacheFile(tmp_path, bytes(32))
    state, _ = prefilled(model, cache, TEXTS[n])
    file.save(cache.most_valuable(PLENTY))
    again = PrefixCache(model.new_state, PLENTY)
    again.restore(file.load(model.new_state, VOCABULARY, state.nbytes))
    assert len(again) < len(cache)
    assert prefilled(model, again, TEXTS[n])[1] == len(TEXTS[n])


def test_on_a_slow_disk_what_is_worth_most_is_kept_in_time(
    model: HybridModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache, file, now = filled(model), CacheFile(tmp_path, bytes(32)), 0.0
    fsync, synced = os.fsync, []

    def slow(number: int) -> None:
        nonlocal now
        now += 2.5
        synced.append(os.fstat(number).st_size)
        fsync(number)

    prefilled(model, cache, TEXTS[1])
    nodes = cache.most_valuable(PLENTY)
    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(disk, "SYNC_BYTES", 1000)
    monkeypatch.setattr(disk, "time", SimpleNamespace(monotonic=lambda: now))
    file.save(nodes)
    assert now == 5 * 2.5, "three times until six seconds are over, what was written since, and the folder"
    assert f"is slow: 3 of {len(nodes)} pieces are kept" in caplog.text
    monkeypatch.undo()
    assert len(list(file.load(model.new_state, VOCABULARY, PLENTY).nodes())) == 3
    assert synced[0] < synced[1] < synced[2]


def test_other_models_files_go_when_the_folder_is_full(model: HybridModel, file: CacheFile) -> None:
    size = file.path.stat().st_size
    nodes = filled(model).most_valuable(PLENTY)
    for n in (1, 2, 3):
        CacheFile(file.path.parent, bytes([n] * 32), 3 * size + 1000).save(nodes)
        os.utime(CacheFile(file.path.parent, bytes([n] * 32)).path, (n, n))
    assert len(list(file.path.parent.glob(f"*{SUFFIX}"))) == 3
    assert CacheFile(file.path.parent, bytes([3] * 32)).path.exists()
    assert not CacheFile(file.path.parent, bytes([1] * 32)).path.exists()
    assert 10 * size < disk.DISK_BYTES
