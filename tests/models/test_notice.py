"""NOTICE names every package the embedded model was trained on, and no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from models.corpus_download import read_packages
from models.notice import main, notice

COMMITTED = Path(__file__).parents[2] / "NOTICE"
GAVE_NOTHING = {"botocore", "fastmcp"}  # in the list of packages, but without a file that passed


def table(text: str) -> list[tuple[str, str, str]]:
    rows = text.partition("licence, as stated\n")[2].splitlines()[1:]
    return [(row.split()[0], row.split()[1], " ".join(row.split()[2:])) for row in rows]


def test_every_row_is_named_with_version_and_licence_in_aligned_columns() -> None:
    rows = [
        {"package": "one", "version": "1.0", "licence": "MIT", "files": "3"},
        {"package": "a-long-name", "version": "2024.10.1", "licence": "Apache Software License", "files": "1"},
    ]
    text = notice(rows)
    assert "the 2 packages below" in text
    assert "\none          1.0        MIT\n" in text
    assert table(text) == [("one", "1.0", "MIT"), ("a-long-name", "2024.10.1", "Apache Software License")]
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_command_turns_the_table_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notice.tsv").write_text("package\tversion\tlicence\tfiles\tbytes\none\t1.0\tMIT\t3\t99\n")
    monkeypatch.setattr(sys, "argv", ["n", "--table", str(tmp_path / "notice.tsv"), "--out", str(tmp_path / "NOTICE")])
    main()
    assert table((tmp_path / "NOTICE").read_text()) == [("one", "1.0", "MIT")]


def test_the_committed_notice_names_the_training_packages_and_none_held_out() -> None:
    listed = {(p.name, p.version, " ".join(p.licence.split())): p.use for p in read_packages()}
    named = table(COMMITTED.read_text(encoding="utf-8"))
    assert {listed.get(row) for row in named} == {"train"}
    assert {row[0] for row, use in listed.items() if use == "train"} - {row[0] for row in named} == GAVE_NOTHING
    assert len(named) == len(set(named))
