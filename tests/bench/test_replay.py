"""Typing in a workspace of many files: the engine's own prefix cache finds almost all of each prompt."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from bench.replay.history import Edit, History, NoHistory, read_history
from bench.replay.prompts import LedgerLayout, PlainLayout
from bench.replay.session import NEEDED, Request, replay, reused_share
from bench.replay.typist import moments
from prompts.budget import Budget
from server.model.delta_net import CHUNK

ROOT = Path(__file__).parents[2]
BUDGET = Budget(12_000)


class WordTokenizer:
    """Words, runs of blanks and other characters: about as many tokens as a real one makes of code."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(part, len(self._ids) + 10) for part in re.findall(r" ?\w{1,8}|\s+|.", text)]

    def special(self, name: str) -> int:
        return 1 + ["<|repo_name|>", "<|file_sep|>", "<|fim_suffix|>", "<|fim_prefix|>", "<|fim_middle|>"].index(name)


def history(edits: int) -> History:
    """Lines of this repository's files that are taken out and written again, in visits to one file after another."""
    rng = random.Random(7)
    found = [*sorted((ROOT / "lsp").glob("*.py")), *sorted((ROOT / "prompts").glob("*.py"))]
    files = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}
    files = dict(sorted((path, text) for path, text in files.items() if len(text) > 800)[:20])
    done: list[Edit] = []
    path = next(iter(files))
    for number in range(edits):
        if number % 3 == 0:
            path = rng.choice(list(files)[: 3 + number // 6])
        lines = tuple(files[path].split("\n"))
        at = rng.randrange(len(lines) - 8)
        part = lines[at : at + rng.randint(2, 6)]
        done += [Edit(path, at, part, ()), Edit(path, at, (), part)]
    return History(files, done)


@pytest.fixture(scope="module")
def ledger_requests() -> list[Request]:
    return replay(history(18), LedgerLayout(BUDGET), WordTokenizer(), longest=2 * BUDGET.tokens)


def test_u34_almost_all_of_the_prompts_is_reused(ledger_requests: list[Request]) -> None:
    assert len(ledger_requests) > 300
    assert reused_share(ledger_requests) >= NEEDED
    assert reused_share(ledger_requests[:80]) >= 0.9


def test_u34_a_keystroke_prefills_what_changed_and_one_checkpoint_gap(ledger_requests: list[Request]) -> None:
    typed = [request for request in ledger_requests if request.step == "types"]
    assert max(request.excess for request in typed) <= 2 * CHUNK


def test_a_plain_prompt_is_computed_again_and_again() -> None:
    requests = replay(history(4), PlainLayout(BUDGET), WordTokenizer(), longest=2 * BUDGET.tokens)
    assert reused_share(requests) < NEEDED


def test_a_session_ends_with_the_texts_of_the_history() -> None:
    edits = [
        Edit("a", 1, ("two", "three"), ("two", "x", "3")),
        Edit("a", 0, (), ("zero",)),
        Edit("a", 5, ("four",), ()),
    ]
    *_, last = moments(History({"a": "one\ntwo\nthree\nfour\n", "b": ""}, [*edits, Edit("a", 0, ("zero",), ("0",))]))
    assert str(last.file.source) == "0\none\ntwo\nx\n3\n"
    assert last.cursor.line == 0


def test_the_edits_of_a_git_history_lead_from_the_first_text_to_the_last(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    texts = ["a\nb\nc\n", "a\nB\nc\nd\n", "x\n-- a\n+++ B\nd\n", "-- a\n+++ B\nd\n\nend\n"]
    git("init")
    for text in texts:
        (tmp_path / "f.py").write_text(text)
        (tmp_path / "g.txt").write_text(text)
        git("add", ".")
        git("commit", "-m", "x")
    found = read_history(tmp_path, files=1, typed=4)
    assert found.files == {"f.py": texts[0]}
    lines = texts[0].split("\n")
    for edit in found.edits:
        assert tuple(lines[edit.at : edit.at + len(edit.removed)]) == edit.removed
        lines[edit.at : edit.at + len(edit.removed)] = edit.added
    assert "\n".join(lines) == texts[-1]
    with pytest.raises(NoHistory, match="no 50 edits"):
        read_history(tmp_path, files=1, typed=50)
