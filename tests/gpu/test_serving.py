"""The engine on a GPU: the embedded model, prompts by torch and answers by the decode kernel."""

from collections.abc import Iterator
from typing import Any

import pytest

from server.engine import Engine
from server.executor import choose
from server.gguf.reader import ModelFile
from server.models_known import find_model
from server.request import FinishedEvent, GenerationRequest, SamplingParams, TextEvent
from server.serving.generation import Generation

pytestmark = pytest.mark.timeout(600)

CODE = """import json


class Inventory:
    def __init__(self, path):
        self._path = path
        self._articles = {}

    def load(self):
        with open(self._path) as file:
            self._articles = json.load(file)

    def save(self):
        with open(self._path, "w") as file:
            json.dump(self._articles, file)

    def __len__(self):
        return len(self"""
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=5, presence_penalty=0.3)


@pytest.fixture(scope="module")
def shared() -> Iterator[Engine]:
    path = find_model(None)
    choice = choose(ModelFile.open(path), make=True)
    assert choice.kernel is not None, choice.text
    failed: list[None] = []
    engine = Engine(path, choice=choice, on_failure=lambda: failed.append(None))
    yield engine
    engine.close()
    assert not failed


@pytest.fixture
def engine(shared: Engine) -> Engine:
    shared._cache.clear()
    return shared


def submit(engine: Engine, text: str, max_tokens: int = 64, **more: Any) -> Generation:
    ids = engine.tokenizer.encode(text)
    return engine.submit(GenerationRequest(ids=ids, max_tokens=max_tokens, **more))


def run(engine: Engine, text: str, max_tokens: int = 64, **more: Any) -> tuple[str, FinishedEvent]:
    *texts, finished = list(submit(engine, text, max_tokens, **more))
    assert isinstance(finished, FinishedEvent)
    assert finished.reason in ("end", "length"), finished.detail
    return "".join(event.text for event in texts if isinstance(event, TextEvent)), finished


def test_the_engine_runs_the_kernel_and_says_so(engine: Engine) -> None:
    assert engine.executor.startswith("decode kernel on ")
    assert engine.prefill_rate > 0
    assert engine.model.device.type == "cuda"


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_text_is_the_same_with_and_without_speculation(engine: Engine, sampling: SamplingParams) -> None:
    drafted = accepted = 0
    for lines in (8, 12, 16, 18):
        text = "\n".join(CODE.split("\n")[:lines])
        engine._cache.clear()
        with_drafts = run(engine, text, 200, sampling=sampling)
        engine._cache.clear()
        without = run(engine, text, 200, sampling=sampling, speculate=False)
        assert with_drafts[0] == without[0]
        assert without[1].counters.drafted == 0
        drafted += with_drafts[1].counters.drafted
        accepted += with_drafts[1].counters.accepted
    assert 0 < accepted < drafted


def test_an_answer_is_code_that_follows_the_prompt(engine: Engine) -> None:
    """Not a number of tokens, but that prompts and launches are of one model."""
    assert run(engine, CODE, 12)[0].startswith("._articles)")


def test_an_answer_after_another_reuses_the_cache_and_is_the_same(engine: Engine) -> None:
    first, _ = run(engine, CODE)
    again, finished = run(engine, CODE)
    assert again == first
    assert finished.counters.reused == finished.counters.prompt_tokens
    _, finished = run(engine, CODE + first[:10])
    assert finished.counters.reused > 0


def test_a_long_answer_is_continued_from_what_launches_left(engine: Engine) -> None:
    ids = engine.tokenizer.encode(CODE)
    tokens: list[int] = []
    for seed in range(40):
        engine._cache.clear()
        sampling = SamplingParams(temperature=1.0, seed=seed)
        for _ in engine.submit(GenerationRequest(ids=ids, max_tokens=300, sampling=sampling)):
            pass
        tokens = list(engine._cache._spare[0].state.tokens)
        if len(tokens) >= len(ids) + 129:
            break
    assert len(tokens) >= len(ids) + 129, "every answer ended early"
    *_, finished = engine.submit(GenerationRequest(ids=[*tokens, ids[-1]], max_tokens=20))
    assert isinstance(finished, FinishedEvent)
    assert finished.counters.reused == len(tokens)
    assert finished.reason in ("end", "length")


def test_a_cancelled_answer_leaves_what_the_next_one_uses(engine: Engine) -> None:
    whole, _ = run(engine, CODE, 100)
    engine._cache.clear()
    generation = submit(engine, CODE, 2000, sampling=SamplingParams(temperature=1.0, seed=2))
    for _ in generation:
        generation.cancel()
    text, finished = run(engine, CODE, 100)
    assert text == whole
    assert finished.counters.reused > 0


def test_a_completion_in_the_middle_of_a_background_answer_changes_neither(engine: Engine) -> None:
    other = CODE.replace("Inventory", "Archive")
    alone = [run(engine, CODE, 200)[0], run(engine, other, 20)[0]]
    engine._cache.clear()
    events = iter(submit(engine, CODE, 200, priority="background"))
    begun = next(events)
    assert isinstance(begun, TextEvent)
    assert run(engine, other, 20)[0] == alone[1]
    rest = "".join(event.text for event in events if isinstance(event, TextEvent))
    assert begun.text + rest == alone[0]


def test_a_prompt_of_many_chunks_is_answered_behind_its_end(engine: Engine) -> None:
    long = "".join(CODE.replace("Inventory", f"Inventory{i}") + ")\n\n\n" for i in range(12)) + CODE
    text, finished = run(engine, long, 40)
    assert finished.counters.prefilled > 1000
    engine._cache.clear()
    assert run(engine, long, 40, speculate=False)[0] == text
