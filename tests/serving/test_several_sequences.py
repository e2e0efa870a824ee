"""Several sequences in one engine: turns at the borders of calls and cycles, states kept, nothing lost or mixed up."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle_drafter import AlwaysDraft
from planted import refused_drafts
from tiny_model import seldom_end, write_tiny_model
from watched_model import Call, Watched

from server.engine import Engine
from server.model.state import SequenceState
from server.request import FinishedEvent, GenerationRequest, SamplingParams, TextEvent
from server.serving import scheduler
from server.serving.generation import Generation
from server.serving.scheduler import TURN_S, EngineBusy
from server.serving.sequence_bytes import sequence_bytes

CONTEXT = 8192
AGENT = 200
"""The first token of everything that the agent asks."""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_model(path, seed=3, context_length=CONTEXT, edit=seldom_end)


@pytest.fixture
def engine(model_file: Path) -> Iterator[Engine]:
    engine = start(model_file, 40_000_000)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def fresh(model_file: Path) -> Iterator[Engine]:
    engine = start(model_file, 0)
    yield engine
    engine.close()


def start(model_file: Path, budget: int) -> Engine:
    """In float64, where it doesn't show which way a token was computed."""
    return Engine(model_file, threads=1, dtype=torch.float64, cache_bytes=budget)


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(190) for _ in range(length)]


def collect(generation: Generation) -> tuple[str, FinishedEvent]:
    text = ""
    for event in generation:
        if isinstance(event, TextEvent):
            text += event.text
        else:
            finished = event
    return text, finished


def run(engine: Engine, ids: list[int], max_tokens: int, **more: Any) -> tuple[str, FinishedEvent]:
    return collect(engine.submit(GenerationRequest(ids, max_tokens, **more)))


class Typist:
    """Asks for completions in the middle of the agent's calls, and counts how many of these each one waits for."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.document = prompt(300, seed)
        self.asked: list[tuple[list[int], Generation]] = []
        self.waited: list[int] = []
        self._waits: int | None = None
        self.watched = Watched(engine, monkeypatch, self.before)

    def before(self, call: Call) -> None:
        if call.owner != AGENT:
            if self._waits is not None:
                self.waited.append(self._waits)
                self._waits = None
        elif self._waits is not None:
            self._waits += 1
        elif self.rng.random() < 0.5:
            self._waits = 0
            self.document = [*self.document, self.rng.randrange(190)]
            ids = [len(self.asked) % 50, *self.document]
            self.asked.append((ids, self.engine.submit(GenerationRequest(ids, 4))))


def check_alternation(engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch, length: int = 2000) -> None:
    typist = Typist(engine, monkeypatch)
    talk, reused_least = [AGENT, *prompt(length, 5)], 1.0
    for turn in range(4):
        held = len(talk) if turn else 0
        talk = [*talk, *prompt(200, 10 + turn)] if turn else talk
        text, finished = run(engine, talk, 24, priority="background")
        counters = finished.counters
        assert counters.prefilled + counters.reused == len(talk), "nothing is computed twice"
        if held:
            reused_least = min(reused_least, counters.reused / held)
        if turn in (0, 3):
            assert text == run(fresh, talk, 24)[0]
    rows = [call.rows for call in typist.watched.calls if call.owner == AGENT and call.name == "prefill"]
    assert sum(rows) <= len(talk) + 4 * 64, "a turn goes on where it was interrupted"
    assert len(typist.waited) > 10
    assert max(typist.waited) == 0, "a completion begins when the agent's call ends that it came in"
    assert reused_least >= 0.95, f"of the agent's cached prefix: {reused_least}"
    for ids, generation in typist.asked:
        text, finished = collect(generation)
        assert text == run(fresh, ids, 4)[0]
        assert finished.reason == "length"


def test_u35_completions_wait_for_one_call_of_a_long_agent_turn_which_keeps_its_prefix(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_alternation(engine, fresh, monkeypatch, 6000)


def test_planted_completions_that_take_their_turn_with_the_agent_are_noticed(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler.Job, "rank", 0)
    with pytest.raises(AssertionError):
        check_alternation(engine, fresh, monkeypatch)


def test_planted_eviction_of_what_is_longest_is_noticed(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = engine._cache._keep_to_budget

    def drop_longest() -> None:
        keep()
        while long := [n for n in engine._cache.tree.nodes() if not n.children and n.end > 1000]:
            engine._cache.tree.remove(long[0])

    monkeypatch.setattr(engine._cache, "_keep_to_budget", drop_longest)
    with pytest.raises(AssertionError):
        check_alternation(engine, fresh, monkeypatch)


def test_long_prompts_of_equals_take_turns_and_each_goes_on_where_it_stopped(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**9))
    engine._scheduler._clock = lambda: 1.01 * TURN_S * next(ticks)
    watched = Watched(engine, monkeypatch)
    prompts = [[n, *prompt(1500, n)] for n in (0, 1, 2)]
    hold = threading.Event()
    inner = engine.model.prefill
    monkeypatch.setattr(engine.model, "prefill", lambda ids, state: (hold.wait(20), inner(ids, state))[1])
    generations = [engine.submit(GenerationRequest(ids, 6)) for ids in prompts]
    hold.set()
    for ids, generation in zip(prompts, generations, strict=True):
        text, finished = collect(generation)
        assert text == run(fresh, ids, 6)[0]
        assert finished.counters.prefilled == len(ids)
    owners = [call.owner for call in watched.calls if call.name == "prefill"]
    assert min(owners[:15].count(n) for n in (0, 1, 2)) >= 3, owners


def test_a_sequence_takes_what_it_was_said_to_take_at_most(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    give_back = engine._cache.give_back
    monkeypatch.setattr(
        engine._cache, "give_back", lambda sequence: (found.append(sequence.state.nbytes), give_back(sequence))[1]
    )
    for length in (300, 1000, 3000, 5000):
        engine._cache.clear()
        run(engine, prompt(length, length), 20)
        said = sequence_bytes(engine.model.new_state(), length + 20, aside=False)
        assert 0.5 * said < found[-1] <= 1.1 * said


def test_too_many_requests_are_refused_and_the_others_are_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOST_REQUESTS", 20)
    taken: list[Generation] = []

    def submit_many() -> None:
        for n in range(2000):
            taken.append(engine.submit(GenerationRequest(prompt(1000, n), 40)))

    with pytest.raises(EngineBusy):
        submit_many()
    taken[3].cancel()
    assert [collect(generation)[1].reason for generation in taken[:4]] == ["length"] * 3 + ["cancelled"]
    for generation in taken[4:]:
        assert collect(generation)[1].reason == "length"
    assert run(engine, prompt(20, 0), 3)[1].reason == "length"


def test_with_room_for_one_sequence_all_are_answered_one_after_the_other(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine._scheduler._room = 1
    monkeypatch.setattr(scheduler, "TURN_S", 1e-9)
    begun: list[int] = []
    Watched(engine, monkeypatch, lambda call: begun.append(engine._scheduler.load[0]))
    generations = [engine.submit(GenerationRequest(prompt(400, n), 10)) for n in range(6)]
    for n, generation in enumerate(generations):
        assert collect(generation)[0] == run(fresh, prompt(400, n), 10)[0]
    assert max(begun) == 1


class Storm:
    """Requests of all kinds at once, and cancels in the middle of prefill, drafts, verification and decoding."""

    WHERE = ("prefill", "decode", "mtp_rows", "draft_logits", "logits", "mtp_fill")

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, prompts: list[list[int]], seed: int) -> None:
        self.engine, self.prompts, self.rng = engine, prompts, random.Random(seed)
        self.running: list[tuple[int, Generation]] = []
        self.cancelled: set[int] = set()
        self.cancelled_in = dict.fromkeys(self.WHERE, 0)
        engine._controller = AlwaysDraft(2)  # one that learns would soon leave it, with a model that guesses
        for name in self.WHERE:
            inner = getattr(engine.model, name)

            def stormy(*args: Any, name: str = name, inner: Any = inner) -> Any:
                result = inner(*args)
                if self.rng.random() < (0.5 if name == "prefill" else 0.1):
                    self._cancel(name)
                return result

            monkeypatch.setattr(engine.model, name, stormy)

    def _cancel(self, where: str) -> None:
        left = [g for _, g in list(self.running) if id(g) not in self.cancelled]
        if left:
            generation = self.rng.choice(left)
            self.cancelled.add(id(generation))
            self.cancelled_in[where] += 1
            generation.cancel()

    def rounds(self, count: int, wanted: list[str], length: int) -> int:
        """-> how many were cancelled before their end."""
        ended = 0
        for _ in range(count):
            chosen = [self.rng.randrange(len(self.prompts)) for _ in range(self.rng.randrange(2, 6))]
            self.running, self.cancelled = [], set()
            for n in chosen:
                priority = self.rng.choice(("completion", "background"))
                request = GenerationRequest(self.prompts[n], length, priority=priority)
                self.running.append((n, self.engine.submit(request)))
            for n, generation in list(self.running):
                text, finished = collect(generation)
                if finished.reason == "cancelled":
                    assert id(generation) in self.cancelled, "cancelling one touches no other"
                    assert wanted[n].startswith(text)
                    ended += 1
                else:
                    assert finished.reason in ("length", "end"), finished.detail
                    assert text == wanted[n]
            self.running = []
            assert self.engine._cache.nbytes <= self.engine._cache.budget
        return ended


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(found) is kind for found in gc.get_objects())


def test_u31_cancels_anywhere_leave_no_trace_and_touch_no_other(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    prompts = [prompt(rng.randrange(10, 300), n) for n in range(8)]
    prompts += [base[: rng.randrange(5, len(base))] + prompt(rng.randrange(1, 40), 50) for base in prompts]
    engine._cache.budget = 1_500_000  # so that they push each other out
    wanted = [run(fresh, ids, 12)[0] for ids in prompts]
    run(engine, prompts[0], 12)
    threads, states = threading.active_count(), alive(SequenceState)
    storm = Storm(engine, monkeypatch, prompts, 1)
    cancelled = storm.rounds(320, wanted, 12)
    assert cancelled > 500
    assert min(storm.cancelled_in.values()) > 20, storm.cancelled_in
    assert engine._scheduler.load == (0, 0)
    assert threading.active_count() == threads
    assert alive(SequenceState) <= states + 2, "what waits for the next requests, and no more"
    monkeypatch.undo()
    for ids, text in zip(prompts, wanted, strict=True):
        assert run(engine, ids, 12)[0] == text


def test_planted_cancels_that_keep_drafts_are_noticed(
    engine: Engine, fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(60, n) for n in range(4)]
    wanted = [run(fresh, ids, 12)[0] for ids in prompts]
    refused_drafts(engine, monkeypatch)
    with pytest.raises(AssertionError):
        Storm(engine, monkeypatch, prompts, 1).rounds(60, wanted, 12)


def test_u36_many_conversations_at_once_leak_nothing_into_each_other(engine: Engine, fresh: Engine) -> None:
    """Each has a canary token in an equal frame, several run at a time, and each goes on as if it were alone."""
    rng = random.Random(3)
    frame = prompt(90, 99)
    talks = [[*frame[:70], canary, *frame[70:], *prompt(rng.randrange(3, 20), canary)] for canary in range(40)]
    reused = 0
    for turn in range(50):
        chosen = rng.sample(range(len(talks)), 4)
        priorities = [rng.choice(("completion", "background")) for _ in chosen]
        generations = [
            engine.submit(GenerationRequest(talks[n], 5, priority=priority))
            for n, priority in zip(chosen, priorities, strict=True)
        ]
        for n, generation in zip(chosen, generations, strict=True):
            text, finished = collect(generation)
            assert text == run(fresh, talks[n], 5)[0]
            assert finished.counters.reused + finished.counters.prefilled == len(talks[n])
            assert finished.counters.shared >= finished.counters.reused
            reused += finished.counters.reused
            talks[n] = [*talks[n], *prompt(rng.randrange(1, 9), turn)] if len(talks[n]) < 150 else talks[n][:95]
    assert reused > 3000


def resident() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks /proc what a process holds")
def test_u40_memory_stays_flat_over_many_requests(engine: Engine) -> None:
    """Of many different prompts, answered and cancelled: what is kept stays in its budget, and the process with it."""

    def requests(count: int, seed: int) -> None:
        for n in range(count):
            generation = engine.submit(
                GenerationRequest(prompt(400, 1000 * seed + n), 6, sampling=SamplingParams(temperature=1.0, seed=n))
            )
            if n % 3 == 0:
                generation.cancel()
            collect(generation)
            assert engine._cache.nbytes <= engine._cache.budget

    engine._cache.budget = 10_000_000
    requests(40, 1)
    gc.collect()
    before = resident()
    requests(160, 2)
    gc.collect()
    held = engine._cache
    tensors = [x for node in held.tree.nodes() for x in (node.rows.stored, *recurrent(node.checkpoint))]
    assert sum(x.untyped_storage().nbytes() for x in tensors) <= held.nbytes, "no tensor holds another's memory"
    assert resident() - before < 25_000_000
    assert held.nbytes > 0.5 * held.budget


def recurrent(checkpoint: Any) -> tuple[torch.Tensor, ...]:
    return () if checkpoint is None else (checkpoint.memory, checkpoint.conv, checkpoint.last_hidden)
