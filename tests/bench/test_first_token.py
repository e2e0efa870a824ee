"""The benchmark of long prompts: what it asks is kept as it says, and an answer that is not a fresh engine's shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from planted import shared_memory
from tiny_model import seldom_end, write_tiny_model

from bench.first_token import COLD, Asked, different, length_section, main, measure
from server.engine import Engine

LENGTHS = (64, 1500)
TOKENS = [random.Random(1).randrange(250) for _ in range(2000)]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=3, edit=seldom_end)


def start(model_file: Path, **more: int) -> Engine:
    return Engine(model_file, threads=1, dtype=torch.float64, **more)


@pytest.fixture(scope="module")
def fresh(model_file: Path) -> Iterator[Engine]:
    engine = start(model_file, cache_bytes=0)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def asked(model_file: Path) -> list[list[Asked]]:
    engine = start(model_file)
    found = list(measure(engine, TOKENS, LENGTHS, 2))
    engine.close()
    return found


def test_each_variant_finds_of_the_first_prompt_what_it_begins_with(asked: list[list[Asked]]) -> None:
    short, long = asked
    assert [len(short), len(long)] == [10, 10]
    computed = [
        [a.counters.prefilled for a in long if a.variant == name] for name in dict.fromkeys(a.variant for a in long)
    ]
    cold, more, *edits = computed
    assert cold == [1500, 1500], "a run finds nothing of the one before"
    assert max(more) <= 4
    assert [edit[0] for edit in edits] == sorted(edit[0] for edit in edits)
    assert edits[0][0] < 700, "from the last kept state before 90 % of the prompt on"
    assert [a.counters.reused for a in short if a.variant == COLD] == [0, 0]


def test_answers_are_compared_with_a_fresh_engines(
    model_file: Path, fresh: Engine, asked: list[list[Asked]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert different(fresh, [a for part in asked for a in part]) == []
    engine = start(model_file)
    shared_memory(engine, monkeypatch)
    (wrong,) = measure(engine, TOKENS, (1500,), 1)
    engine.close()
    assert any(name.startswith("1500 tokens, ") for name in different(fresh, wrong))


def test_a_section_has_each_variant_with_its_runs(asked: list[list[Asked]]) -> None:
    section = length_section(asked[1])
    assert [figure.name for figure in section.figures] == [a.variant for a in asked[1][:5]]
    assert all(len(figure.samples) == 2 for figure in section.figures)
    assert ("computed, cold", "1500") in section.facts


def test_the_command_says_that_the_answers_are_equal(
    model_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([str(model_file), "--longest", "64", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith("--longest 64 --runs 1")
    assert out.splitlines()[-1].startswith("parity (")
    assert out.splitlines()[-1].endswith(": yes")
