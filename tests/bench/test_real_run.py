"""The parts of the benchmark with a real engine: what they count, never how long it takes."""

import pytest

from bench.engine import BenchEngine, EngineHome
from bench.material import corpus
from bench.prefill import measure_prefill, new_prompts
from bench.speculation import is_exact, measure_pairs
from bench.typing import embedded_tokenizer
from server.models_known import find_model


@pytest.fixture(scope="module")
def engine():  # type: ignore[no-untyped-def]
    with EngineHome() as home, home.start() as started:
        yield started


def test_answers_with_and_without_drafts_are_the_same_and_use_drafts(engine: BenchEngine) -> None:
    pairs = measure_pairs(engine, ["def add(a, b):\n    return"])
    assert is_exact(pairs)
    assert pairs[0].on.drafted > 0
    assert pairs[0].off.drafted == 0
    assert pairs[0].off.cycles == pairs[0].off.generated - 1


def test_prompts_for_the_prefill_are_new_and_as_long_as_asked(engine: BenchEngine) -> None:
    prompts = new_prompts(embedded_tokenizer(find_model(None)), corpus(), 100, 3)
    runs = measure_prefill(engine, prompts)
    assert all(80 <= run.tokens <= 100 for run in runs)
