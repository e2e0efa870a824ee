"""Whatever was asked, cancelled and dropped before: at temperature 0 an answer is the one of a fresh engine."""

import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from damage import damaged
from planted import refused_drafts, shared_memory, wrong_rows
from tiny_model import seldom_end, write_tiny_model

from server.cache import disk
from server.cache.disk import DISK_BYTES, SUFFIX, TEMPORARY
from server.engine import Engine
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


def start(model_file: Path, budget: int, folder: Path | None = None, disk_bytes: int = DISK_BYTES) -> Engine:
    """In float64, where it doesn't show which way a token was computed."""
    return Engine(
        model_file, threads=1, dtype=torch.float64, cache_bytes=budget, cache_dir=folder, disk_bytes=disk_bytes
    )


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


class Lives:
    """What happens to engines with one folder, and to the folder, at their ends and between them."""

    def __init__(self, folder: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._rng = rng
        self._monkeypatch = monkeypatch

    def ended(self, engine: Engine) -> None:
        engine.close()

    def killed(self, engine: Engine) -> None:
        """Before it wrote, or while it did, which leaves a part of a file."""
        engine._cache_file = None
        engine.close()
        (self.folder / f"left-{self._rng.random()}{TEMPORARY}").write_bytes(bytes(1000))

    def disk_full(self, engine: Engine) -> None:
        def full(number: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with self._monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            engine.close()

    def damaged(self, engine: Engine) -> None:
        engine.close()
        for path in self.folder.glob(f"*{SUFFIX}"):
            for _ in range(self._rng.randrange(1, 4)):
                path.write_bytes(damaged(path.read_bytes() or b"-", self._rng, self._rng.randrange(100)))

    def folder_gone(self, engine: Engine) -> None:
        shutil.rmtree(self.folder)
        engine.close()


def live(model_file: Path, fresh: Engine, lives: Lives, session: Session, count: int) -> tuple[int, int]:
    """-> how many engines found something, and how many tokens were reused."""
    found = reused = 0
    kinds = [lives.ended, lives.killed, lives.disk_full, lives.damaged, lives.ended, lives.folder_gone]
    for n in range(count):
        budget, disk_bytes = session.rng.choice(BUDGETS), session.rng.choice((300_000, DISK_BYTES))
        engines = [start(model_file, budget, lives.folder, disk_bytes) for _ in range(session.rng.choice((1, 1, 2)))]
        for engine in engines:
            found += len(engine._cache) > 0
            reused += check(engine, fresh, session, 3)
        for engine in engines:
            kinds[n % len(kinds)](engine)
        assert len(list(lives.folder.glob(f"*{SUFFIX}"))) <= 1
        assert len(list(lives.folder.glob(f"*{TEMPORARY}"))) <= len(engines), "the next engine removes them"
    return found, reused


def test_an_answer_is_that_of_a_fresh_engine_whatever_happened_to_the_file(
    model_file: Path, fresh: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(11)
    lives = Lives(tmp_path / "cache", session.rng, monkeypatch)
    found, reused = live(model_file, fresh, lives, session, 18)
    assert found > 6
    assert reused > 2000


def test_a_planted_fault_of_reading_the_file_is_noticed(
    model_file: Path, fresh: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = disk._tensors
    monkeypatch.setattr(disk, "_tensors", lambda *arguments: (-x for x in tensors(*arguments)))
    session = Session(11)
    with pytest.raises(AssertionError):
        live(model_file, fresh, Lives(tmp_path / "cache", session.rng, monkeypatch), session, 18)


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
