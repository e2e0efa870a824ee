"""Whatever was asked, cancelled and dropped before: at temperature 0 an answer is the one of a fresh engine."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from planted import refused_drafts
from tiny_model import seldom_end, write_tiny_model

from server.engine import Engine
from server.model.state import Checkpoint, Rows, SequenceState
from server.request import FinishedEvent, GenerationRequest, TextEvent
from server.serving.generation import Generation

BUDGETS = (400_000, 1_500_000, 20_000_000)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose answers run to their limit."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_model(path, seed=3, context_length=1024, edit=seldom_end)


@pytest.fixture(scope="module")
def fresh(model_file: Path) -> Iterator[Engine]:
    engine = start(model_file, 0)
    yield engine
    engine.close()


def start(model_file: Path, budget: int, folder: Path | None = None) -> Engine:
    """In float64, where it doesn't show which way a token was computed."""
    return Engine(model_file, threads=1, dtype=torch.float64, cache_bytes=budget, cache_dir=folder)


def collect(generation: Generation) -> tuple[str, FinishedEvent]:
    text = ""
    for event in generation:
        if isinstance(event, TextEvent):
            text += event.text
        else:
            finished = event
    return text, finished


class Session:
    """Requests at random: texts that grow, are edited, part from each other and are left."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.texts = [self.tokens(self.rng.randrange(20, 500)) for _ in range(2)]

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(250) for _ in range(count)]

    def request(self) -> GenerationRequest:
        rng, n = self.rng, self.rng.randrange(len(self.texts))
        ids = self.texts[n]
        kind = rng.random()
        if kind < 0.4:  # typing
            ids = ids[: len(ids) - rng.randrange(3)] + self.tokens(rng.randrange(1, 4))
        elif kind < 0.6:  # an edit further up
            at = rng.randrange(len(ids))
            ids = ids[:at] + self.tokens(rng.randrange(1, 60)) + ids[at:][:100]
        elif kind < 0.7:
            ids = ids + self.tokens(rng.randrange(1, 90))
        ids = ids[:700] or [1]
        if kind > 0.9 and len(self.texts) < 6:
            self.texts.append(ids[: rng.randrange(1, len(ids) + 1)] + self.tokens(5))
        self.texts[n] = ids
        checkpoints = tuple(rng.randrange(len(ids) + 1) for _ in range(rng.randrange(3)))
        priority = rng.choice(("completion", "background"))
        return GenerationRequest(ids=ids, max_tokens=rng.randrange(1, 20), checkpoints=checkpoints, priority=priority)


def greedy(engine: Engine, ids: list[int], length: int) -> list[int]:
    """The tokens of an answer, by the model of an engine that has nothing to do."""
    model, answer = engine.model, []
    state = model.new_state()
    model.prefill(ids, state)
    while len(answer) < length:
        answer.append(int(model.logits(state.last_hidden[None])[0].argmax()))
        model.decode(answer[-1:], state)
    return answer


def check(engine: Engine, fresh: Engine, session: Session, rounds: int) -> int:
    """-> tokens reused."""
    reused = 0
    for _ in range(rounds):
        requests = [session.request() for _ in range(session.rng.randrange(1, 4))]
        generations = [engine.submit(request) for request in requests]
        for generation in generations:
            if session.rng.random() < 0.3:
                time.sleep(session.rng.random() ** 3 * 0.03)
                generation.cancel()
        for request, generation in zip(requests, generations, strict=True):
            text, finished = collect(generation)
            wanted, _ = collect(fresh.submit(request))
            assert finished.reason in ("length", "end", "cancelled"), finished.detail
            assert wanted.startswith(text) if finished.reason == "cancelled" else text == wanted
            reused += finished.counters.reused
        if session.rng.random() < 0.5:  # a text goes on after its answer
            n = session.texts.index(requests[-1].ids)
            session.texts[n] = [*requests[-1].ids, *greedy(fresh, requests[-1].ids, requests[-1].max_tokens), 3]
        if session.rng.random() < 0.05:
            engine._cache.clear()
        assert engine._cache.nbytes <= engine._cache.budget
    return reused


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_answer_is_that_of_a_fresh_engine(model_file: Path, fresh: Engine, budget: int, tmp_path: Path) -> None:
    session, reused, found = Session(budget), 0, 0
    for _ in range(4):
        engine = start(model_file, budget, tmp_path)
        found += len(engine._cache)
        reused += check(engine, fresh, session, 14)
        engine.close()
    if budget > BUDGETS[0]:  # which has no room for one of the longer texts
        assert reused > 1000
        assert found > 3, "restarts find what was kept"


def wrong_rows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept has keys for values."""
    rows = SequenceState.rows
    monkeypatch.setattr(
        SequenceState, "rows", lambda self, start, end: Rows(start, rows(self, start, end).stored.flip(1))
    )


def shared_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request writes into what is kept."""
    checkpoint = SequenceState.checkpoint

    def view(self: SequenceState, length: int | None = None) -> Checkpoint:
        kept = checkpoint(self, length)
        return replace(kept, memory=self.memory) if kept.length == self.length else kept

    monkeypatch.setattr(SequenceState, "checkpoint", view)


@pytest.mark.parametrize("plant", [refused_drafts, wrong_rows, shared_memory])
def test_a_planted_fault_of_what_is_kept_is_noticed(
    model_file: Path, fresh: Engine, monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None]
) -> None:
    """Planted where it reaches what is kept alone, so that the fresh engine is right."""
    engine = start(model_file, BUDGETS[-1])
    plant(engine, monkeypatch)
    with pytest.raises(AssertionError):
        check(engine, fresh, Session(5), 50)
    engine.close()
