"""Edits of a git history, answered by force: in torch, and by launches that the interpreter runs."""

import subprocess
from pathlib import Path

import pytest
import torch
from interpreted_launches import interpreted
from small_models import EXACT, Small, small_model_maker

from bench.edits import Benchmark, Edit, Run, in_tokens, main, read_arguments, speed_section
from bench.forced import ForcedCycles, ForcedSampler, InTorch, Machinery, OnKernel
from bench.regions import CONTEXT, OF_A_COMMIT, Region, hunks, read_regions
from bench.replay.history import NoHistory

LINES = [f"value_{n} = {n}" for n in range(60)]


def commit(folder: Path, lines: list[str], name: str = "a.py") -> None:
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), "add", "."], check=True)
    subprocess.run(["git", "-C", str(folder), *words, "commit", "-qm", "x"], check=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    commit(folder, LINES)
    commit(folder, [*LINES[:30], "new = 1", "--- a = 2", *LINES[31:]])
    commit(folder, [*LINES[:30], "new = 1", "--- a = 2", *LINES[31:]], "same.txt")
    return folder


def test_a_region_is_a_change_with_the_lines_around_it(repository: Path) -> None:
    (region,) = read_regions(repository, 1)
    assert region.path == "a.py"
    assert list(region.above) == LINES[: 30 - CONTEXT]
    assert list(region.old) == LINES[30 - CONTEXT : 31 + CONTEXT]
    assert list(region.new) == [*LINES[30 - CONTEXT : 30], "new = 1", "--- a = 2", *LINES[31 : 31 + CONTEXT]]
    assert region.added == 2


def test_too_few_regions_are_an_error_with_both_numbers(repository: Path) -> None:
    with pytest.raises(NoHistory, match="has 1 regions and not 2"):
        read_regions(repository, 2)


def test_no_commit_has_more_than_its_share_and_short_regions_are_left_out(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    many = [f"x_{n} = {n}" for n in range(400)]
    commit(tmp_path, many)
    commit(tmp_path, [f"{line} + 1" if n % 80 == 40 else line for n, line in enumerate(many)])
    commit(tmp_path, ["changed", *many[1:]])  # five changes back, and one too near to the beginning
    regions = read_regions(tmp_path, OF_A_COMMIT)
    assert [len(region.above) for region in regions] == [30, 110]
    with pytest.raises(NoHistory, match=f"has {2 * OF_A_COMMIT} regions"):
        read_regions(tmp_path, 2 * OF_A_COMMIT + 1)


def test_hunks_have_their_path_and_lines_that_look_like_heads_stay_lines() -> None:
    diff = (
        "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -3,2 +3,3 @@ def f():\n a\n--- b\n+++ b/c\n+d\n"
        "@@ -9 +10 @@\n-e\n+f\n\\ No newline at end of file\n"
        "diff --git a/y.py b/y.py\n--- a/y.py\n+++ b/y.py\n@@ -1 +1 @@\n-g\n+h\n"
    )
    assert list(hunks(diff)) == [
        ("x.py", 3, [" a", "--- b", "+++ b/c", "+d"]),
        ("x.py", 9, ["-e", "+f"]),
        ("y.py", 1, ["-g", "+h"]),
    ]


class Characters:
    def encode(self, text: str) -> list[int]:
        return [ord(c) % 250 for c in text]


def test_a_prompt_ends_with_the_old_text(repository: Path) -> None:
    (region,) = read_regions(repository, 1)
    edit = in_tokens(region, Characters())
    assert edit.prompt[-len(edit.old) :] == edit.old
    assert edit.new == Characters().encode("\n".join(region.new) + "\n")
    long = in_tokens(Region("a.py", ("x",) * 500, ("y" * 999,), ("z",), 1), Characters())
    assert long.prompt == long.old
    assert len(long.old) == 1000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return small_model_maker(tmp_path_factory.mktemp("small"))("plain", EXACT)


def on_kernel(small: Small) -> OnKernel:
    cycles = interpreted(small, kind=ForcedCycles).cycles
    assert isinstance(cycles, ForcedCycles)
    return OnKernel(small.reference, cycles)


@pytest.mark.parametrize("kind", ["torch", "kernel"])
def test_a_forced_answer_is_the_new_text_in_every_mode(small: Small, kind: str) -> None:
    machinery: Machinery = InTorch(small.reference) if kind == "torch" else on_kernel(small)
    old = [(7 * n * n + 3 * n) % 250 for n in range(60)]
    edits = [Edit(old, old, [*old[:cut], 7, 8, *old[cut + 3 :]]) for cut in (10, 20, 30, 40, 50)]
    with torch.inference_mode():
        benchmark = Benchmark(machinery, edits)
        assert benchmark.parity(2) == (4, 4)
        found = benchmark.run()
    assert len(found) == 2
    for runs in found:
        assert {run.tokens for run in runs.values()} == {59}
        plain, head, copies = (runs[mode] for mode in ("plain", "head", "copies"))
        assert (plain.cycles, plain.drafted) == (58, 0)
        assert (head.copied, head.cycles) == (0, 58 - head.accepted)
        assert copies.cycles < 30
        assert copies.copied_accepted > 30
        assert copies.copied >= copies.copied_accepted


@pytest.mark.parametrize("kind", ["torch", "kernel"])
def test_a_forced_answer_takes_no_draft_that_is_not_the_targets(small: Small, kind: str) -> None:
    machinery: Machinery = InTorch(small.reference) if kind == "torch" else on_kernel(small)
    target = [(11 * n * n + n) % 250 for n in range(40)]
    wrong = [(token + 1) % 250 for token in target]
    with torch.inference_mode():
        edits = [Edit(target, wrong, target)] * 4
        (runs,) = Benchmark(machinery, edits).run()
    assert runs["copies"].copied_accepted <= 2


def test_a_forced_sampler_still_looks_at_the_logits() -> None:
    sampler = ForcedSampler([5, 6], 10)
    assert sampler.choose(torch.zeros(10)) == 5
    sampler.accept(5)
    assert sampler.choose(torch.ones(10)) == 6
    with pytest.raises(RuntimeError, match="not numbers"):
        sampler.choose(torch.full((10,), torch.nan))


def test_ratios_are_taken_edit_by_edit_and_over_the_run() -> None:
    def run(seconds: float, copied: int = 0) -> Run:
        return Run(41, seconds, 10, copied, copied // 2, copied, copied // 2)

    found = [
        {"copies": run(1, 20), "head": run(2), "plain": run(4)},
        {"copies": run(2, 20), "head": run(2), "plain": run(2)},
    ]
    section = speed_section(found)
    assert section.figures[0].samples == (4.0, 1.0)
    assert section.figures[1].samples == (2.0, 1.0)
    facts = dict(section.facts)
    assert facts["accepted"] == "20 of 40 copied drafts (50%)"
    assert facts["ratio of the whole run, copies over plain"] == "2.00"


def test_a_model_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_arguments(["model.gguf"])
    assert "needs --gpu" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["--gpu", "--edits", "1"]) == 1
        assert "NVIDIA GPU" in capsys.readouterr().err
