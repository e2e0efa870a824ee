"""The workers that make batches: who reads what, and what a batch looks like."""

from __future__ import annotations

import lzma
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.batches import Batches, passes, produce
from models.errors import TrainingError
from models.files import File, write_files
from models.tokenizer_file import load_tokenizer


def write_part(path: Path, files: list[File]) -> Path:
    write_files(files, path.with_suffix(""))
    path.write_bytes(lzma.compress(path.with_suffix("").read_bytes(), preset=0))
    return path


def singles(name: str, count: int) -> list[File]:
    """Packages of one file, so that a group is a file."""
    return [File(f"{name}{n}", f"{name}{n}.py", f"# {name} {n}\n") for n in range(count)]


class Enough(Exception):  # noqa: N818
    pass


class Taker:
    """A queue that takes ``limit`` batches and then ends the worker."""

    def __init__(self, limit: int) -> None:
        self.taken: list[np.ndarray[Any, np.dtype[np.int16]]] = []
        self.limit = limit

    def put(self, batch: np.ndarray[Any, np.dtype[np.int16]]) -> None:
        self.taken.append(batch)
        if len(self.taken) >= self.limit:
            raise Enough


def test_the_workers_shares_of_a_pass_are_the_whole_text_once(tmp_path: Path) -> None:
    part = write_part(tmp_path / "a.jsonl.xz", singles("a", 10))
    shares = [list(islice(passes([part], 1, worker, 3), size)) for worker, size in enumerate((4, 3, 3))]
    assert sorted(f.path for share in shares for group in share for f in group) == sorted(f"a{n}.py" for n in range(10))


def test_every_pass_has_its_own_order(tmp_path: Path) -> None:
    part = write_part(tmp_path / "a.jsonl.xz", singles("a", 10))
    groups = list(islice(passes([part], 1, 0, 1), 20))
    assert groups[:10] != groups[10:]
    assert sorted(map(str, groups[:10])) == sorted(map(str, groups[10:]))
    assert groups != list(islice(passes([part], 2, 0, 1), 20))


def test_a_part_that_appears_later_catches_up(tmp_path: Path) -> None:
    first = write_part(tmp_path / "a.jsonl.xz", singles("a", 4))
    late = tmp_path / "b.jsonl.xz"
    groups = passes([first, late], 1, 0, 1)
    read = [next(groups)[0].path[0] for _ in range(8)]
    write_part(late, singles("b", 4))
    read += [next(groups)[0].path[0] for _ in range(16)]
    assert "".join(read) == "aaaaaaaa" + "bbbb" * 2 + "aaaa" + "bbbb"


def test_a_batch_holds_int16_windows_with_markers_in_them(
    tmp_path: Path, tokenizer_path: Path, text_files: list[File]
) -> None:
    part = write_part(tmp_path / "a.jsonl.xz", text_files)
    out = Taker(20)
    with pytest.raises(Enough):
        produce(out, [part], tokenizer_path, 256, 2, 1, 0, 1)
    assert {(batch.shape, batch.dtype) for batch in out.taken} == {((2, 257), np.dtype(np.int16))}
    tokenizer = load_tokenizer(tokenizer_path)
    seen = set(np.stack(out.taken).ravel().tolist())
    assert seen < set(range(512))
    for name in ("endoftext", "fim_prefix", "fim_middle", "fim_suffix", "file_sep"):
        assert tokenizer.special(f"<|{name}|>") in seen
    for name in ("<|im_start|>", "<think>", "<|fim_pad|>"):
        assert tokenizer.special(name) not in seen


def test_missing_text_is_an_error_before_any_worker_starts(tmp_path: Path, tokenizer_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"train-00.jsonl.xz is missing; run models.corpus"):
        Batches([tmp_path / "train-00.jsonl.xz"], tokenizer_path, 64, 1, 1, 1)
