"""Corpus parts are written and read back."""

from __future__ import annotations

import lzma
from pathlib import Path

from models.files import File, read_files, write_files

FILES = [File("a", "a/b.py", 'x = "\u2028 é \\n"\n'), File("c", "c.py", "pass\n")]


def test_a_part_comes_back_as_it_was_written_and_holds_a_line_for_each_file(tmp_path: Path) -> None:
    write_files(FILES, tmp_path / "part.jsonl")
    assert list(read_files(tmp_path / "part.jsonl")) == FILES
    assert (tmp_path / "part.jsonl").read_bytes().count(b"\n") == 2


def test_a_compressed_part_is_read_by_its_name(tmp_path: Path) -> None:
    write_files(FILES, tmp_path / "part.jsonl")
    (tmp_path / "part.jsonl.xz").write_bytes(lzma.compress((tmp_path / "part.jsonl").read_bytes()))
    assert list(read_files(tmp_path / "part.jsonl.xz")) == FILES
