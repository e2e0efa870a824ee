"""The engine as its callers see it: events, counters, stops, cancellation, order, errors."""

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from predictions import CopiesCostNothing, predictions
from tiny_model import seldom_end, write_tiny_model

from server.engine import ContextOverflow, Engine, InvalidRequest
from server.gguf.errors import UselessWeights
from server.request import Event, FinishedEvent, GenerationRequest, PrefillEvent, SamplingParams, TextEvent
from server.serving import progress, scheduler
from server.serving.answer_text import AnswerText
from server.serving.generation import Generation
from server.speculation.copies import CopyTimes
from server.speculation.depth import DepthController
from server.speculation.sampling import InvalidSampling

CONTEXT = 1024
WARM = SamplingParams(temperature=1.5, seed=1)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_model(path, seed=3, context_length=CONTEXT, edit=seldom_end)


@pytest.fixture(scope="module")
def shared_engine(model_file: Path) -> Iterator[Engine]:
    engine = Engine(model_file, threads=1)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The shared engine with nothing kept and nothing learnt, so that tests don't depend on each other."""
    shared_engine._cache.clear()
    shared_engine._controller = DepthController()
    shared_engine._copy_times = CopyTimes()
    return shared_engine


def before_the_last_line(text: str) -> int:
    return len(text[: text.rfind("\n") + 1].rstrip())


class Rule:
    """A stop rule from functions of the text."""

    def __init__(
        self, decide: Callable[[str], int | None], settled: Callable[[str], int] = before_the_last_line
    ) -> None:
        self.decide = decide
        self._settled = settled

    def __call__(self, text: str) -> int | None:
        return self.decide(text)

    def settled(self, text: str) -> int:
        return self._settled(text)


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(250) for _ in range(length)]


def ask(engine: Engine, ids: list[int], max_tokens: int = 24, **more: Any) -> GenerationRequest:
    return GenerationRequest(ids=ids, max_tokens=max_tokens, **more)


def run(engine: Engine, ids: list[int], max_tokens: int = 24, **more: Any) -> tuple[str, FinishedEvent]:
    return collect(engine.submit(ask(engine, ids, max_tokens, **more)))


def collect(generation: Generation) -> tuple[str, FinishedEvent]:
    events = list(generation)
    assert all(isinstance(event, TextEvent) for event in events[:-1])
    assert isinstance(events[-1], FinishedEvent)
    return "".join(event.text for event in events[:-1]), events[-1]


class Gate:
    """Holds the worker before a call of one of the model's functions, until it is opened."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, at_call: int = 1) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.calls = 0
        inner = getattr(engine.model, name)

        def held(*args: Any) -> Any:
            self.calls += 1
            if self.calls == at_call:
                self.reached.set()
                assert self.opened.wait(20)
            return inner(*args)

        monkeypatch.setattr(engine.model, name, held)

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.set()


def test_an_answer_is_text_and_one_finished_event(engine: Engine) -> None:
    text, finished = run(engine, prompt(20), sampling=WARM)
    assert text
    assert finished.reason in ("length", "end")
    assert finished.detail == ""


def test_text_is_the_same_with_and_without_speculation(engine: Engine) -> None:
    drafted = 0
    for seed in range(4):
        for sampling in (SamplingParams(), SamplingParams(temperature=0.9, seed=seed, frequency_penalty=0.2)):
            engine._cache.clear()
            with_drafts = run(engine, prompt(70, seed), 60, sampling=sampling)
            engine._cache.clear()
            without = run(engine, prompt(70, seed), 60, sampling=sampling, speculate=False)
            assert with_drafts[0] == without[0]
            drafted += with_drafts[1].counters.drafted
            assert without[1].counters.drafted == 0
    assert drafted > 0


def test_u41_every_answer_carries_true_counters(engine: Engine) -> None:
    ids = prompt(700)
    for step in range(6):
        _, finished = run(engine, ids[: 400 + 50 * step], 20, checkpoints=(380 + 50 * step,))
        c = finished.counters
        assert c.prompt_tokens == 400 + 50 * step
        assert c.reused + c.prefilled == c.prompt_tokens
        assert (c.reused > 0) == (step > 0)
        assert c.generated == 20 or finished.reason == "end"
        assert c.generated <= 1 + c.cycles + c.accepted
        assert 0 <= c.accepted <= c.drafted
        assert 0 < c.ttft_ms <= c.total_ms
        assert c.prefill_tokens_per_second > 0
        assert c.tokens_per_second > 0


def test_counters_are_those_of_the_models_own_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prefilled: list[int] = []
    decoded: list[int] = []
    prefill, decode = engine.model.prefill, engine.model.decode
    monkeypatch.setattr(engine.model, "prefill", lambda ids, s: (prefilled.append(len(ids)), prefill(ids, s))[1])
    monkeypatch.setattr(engine.model, "decode", lambda ids, s: (decoded.append(len(ids)), decode(ids, s))[1])
    c = run(engine, prompt(600), 30)[1].counters
    steps, cycles = decoded[: -c.cycles], decoded[-c.cycles :]  # a prompt's last tokens are computed as an answer's are
    assert c.prefilled == sum(prefilled) + sum(steps)
    assert max(prefilled) <= 256
    assert max(steps) <= 16
    assert c.drafted == sum(cycles) - len(cycles)


def test_a_long_prompt_tells_how_far_it_is_if_asked_and_the_answer_is_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUIET_S", "EVERY_S"):
        monkeypatch.setattr(progress, name, 0.0)
    ids = prompt(900)
    run(engine, ids[:300], 1)
    *events, finished = engine.submit(ask(engine, ids, progress=True))
    told = [event for event in events if isinstance(event, PrefillEvent)]
    assert told == events[: len(told)], "all before the text"
    assert isinstance(finished, FinishedEvent)
    assert len(told) > 3
    assert {event.total for event in told} == {900}
    done = [event.done for event in told]
    assert done == sorted(set(done))
    assert done[0] > finished.counters.reused > 0
    assert done[-1] == 900
    engine._cache.clear()
    text, _ = run(engine, ids)
    assert "".join(event.text for event in events if isinstance(event, TextEvent)) == text


def test_the_same_prompt_again_prefills_nothing_and_gives_the_same_text(engine: Engine) -> None:
    first = run(engine, prompt(300), 30)
    again = run(engine, prompt(300), 30)
    assert again[0] == first[0]
    assert again[1].counters.reused == 300


def test_u04_no_special_token_is_shown_and_an_end_token_ends(engine: Engine) -> None:
    """Nearly uniform sampling hits every special token of the vocabulary."""
    reasons = set()
    for seed in range(60):
        text, finished = run(engine, prompt(5, seed), 40, sampling=SamplingParams(temperature=50.0, seed=seed))
        assert "<|" not in text
        assert "<think>" not in text
        assert "</tool_call>" not in text
        assert "[PAD" not in text
        reasons.add(finished.reason)
    assert reasons == {"end", "length"}


def test_u04_generation_stops_in_the_engine_at_the_stop_rule(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.5, seed=5)
    whole, _ = run(engine, prompt(20), 60, sampling=sampling)
    for at in (1, len(whole) // 3, len(whole) // 2):
        seen: list[str] = []

        def decide(text: str, at: int = at, seen: list[str] = seen) -> int | None:
            seen.append(text)
            return at if len(text) > at else None

        text, finished = run(engine, prompt(20), 60, sampling=sampling, stop=Rule(decide))
        assert text == whole[:at]
        assert finished.reason == "stop"
        assert finished.counters.generated < 60
        assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
        before_the_end = seen[:-1]
        assert all(len(text) <= at for text in before_the_end), "the first text that is long enough ends it"


def test_u04_text_that_a_rule_takes_back_was_never_shown(engine: Engine) -> None:
    """A rule that ends before the blank space it saw earlier."""
    taken_back = 0
    for seed in range(10):
        sampling = SamplingParams(temperature=3.0, seed=seed)
        whole, _ = run(engine, prompt(20), 50, sampling=sampling)

        def decide(text: str) -> int | None:
            cut = text.find("\n", 5)
            return len(text[:cut].rstrip()) if cut >= 0 and len(text) > cut + 1 else None

        text, finished = run(engine, prompt(20), 50, sampling=sampling, stop=Rule(decide))
        if finished.reason == "stop":
            assert text == whole[: whole.find("\n", 5)].rstrip()
            taken_back += 1
    assert taken_back >= 1


def test_text_streams_as_far_as_the_rule_says_it_is_settled(engine: Engine) -> None:
    def shown(rule: Rule) -> list[Event]:
        return list(engine.submit(ask(engine, prompt(20), 40, sampling=WARM, stop=rule)))

    assert len(shown(Rule(lambda text: None, settled=lambda text: len(text) - 1))) > 5
    assert len(shown(Rule(lambda text: None, settled=lambda text: 0))) == 2


def test_u04_the_answer_ends_after_so_many_tokens_or_so_much_time(engine: Engine, monkeypatch: Any) -> None:
    assert run(engine, prompt(20), 7)[1].counters.generated == 7
    assert run(engine, prompt(20), 7)[1].reason == "length"
    with Gate(engine, monkeypatch, "decode", at_call=4) as gate:
        generation = engine.submit(ask(engine, prompt(20), 900, timeout_ms=150))
        assert gate.reached.wait(20)
        time.sleep(0.2)
    text, finished = collect(generation)
    assert finished.reason == "timeout"
    assert text
    assert finished.counters.cycles == 4


def test_a_waiting_request_times_out_before_the_next_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gate(engine, monkeypatch, "decode") as gate:
        running = engine.submit(ask(engine, prompt(20), 20))
        assert gate.reached.wait(20)
        waiting = engine.submit(ask(engine, prompt(30), 20, timeout_ms=1))
        time.sleep(0.01)
    assert collect(waiting)[1].reason == "timeout"
    assert collect(running)[1].reason == "length"


def test_no_tokens_asked_for_only_fills_the_cache(engine: Engine) -> None:
    text, finished = run(engine, prompt(300), 0)
    assert (text, finished.reason, finished.counters.generated) == ("", "length", 0)
    assert run(engine, prompt(300), 5)[1].counters.reused == 300


def test_the_answer_ends_where_the_context_does(engine: Engine) -> None:
    _, finished = run(engine, prompt(CONTEXT - 10), 50)
    assert finished.reason == "length"
    assert finished.counters.generated == 10


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 500])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(engine: Engine, length: int) -> None:
    with pytest.raises(ContextOverflow, match=f"{length} tokens.*{CONTEXT}") as caught:
        engine.submit(ask(engine, prompt(length)))
    assert (caught.value.have, caught.value.limit) == (length, CONTEXT)


def test_requests_that_make_no_sense_are_refused_at_once(engine: Engine) -> None:
    for ids, more in (([], {}), ([10**6], {}), ([-1], {}), ([1], {"max_tokens": -1})):
        with pytest.raises(InvalidRequest):
            engine.submit(ask(engine, ids, **more))
    with pytest.raises(InvalidSampling):
        engine.submit(ask(engine, [1], sampling=SamplingParams(top_p=0)))


def test_a_prediction_outside_the_vocabulary_is_refused_at_once(engine: Engine) -> None:
    for token in (10**6, -1):
        with pytest.raises(InvalidRequest, match="the prediction has a token outside"):
            engine.submit(ask(engine, [1], prediction=(5, token)))


class KeepsTokens:
    """The tokens of answers, which their text doesn't tell."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        push = AnswerText.push
        monkeypatch.setattr(AnswerText, "push", lambda text, token: (self.tokens.append(token), push(text, token))[1])


def answered(engine: Engine, kept: KeepsTokens, ids: list[int], max_tokens: int, **more: Any) -> tuple[int, ...]:
    """The tokens of an answer without drafts; nothing is kept of it."""
    kept.tokens.clear()
    engine._cache.clear()
    run(engine, ids, max_tokens, speculate=False, **more)
    engine._cache.clear()
    return tuple(kept.tokens)


@pytest.fixture
def kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> KeepsTokens:
    return KeepsTokens(engine, monkeypatch)


def test_no_prediction_changes_an_answer(engine: Engine, kept: KeepsTokens) -> None:
    copied = 0
    for seed, sampling in enumerate((SamplingParams(), WARM, SamplingParams(temperature=0.9, seed=3))):
        ids = prompt(70, seed)
        wanted = answered(engine, kept, ids, 60, sampling=sampling)
        for name, old in predictions(wanted, 250, CONTEXT).items():
            engine._cache.clear()
            kept.tokens.clear()
            c = run(engine, ids, 60, sampling=sampling, prediction=old)[1].counters
            assert tuple(kept.tokens) == wanted, name
            assert c.copied_accepted <= c.copied <= c.drafted
            assert c.copied_accepted <= c.accepted
            assert c.generated <= 1 + c.cycles + c.accepted
            copied += c.copied_accepted
    assert copied > 1000


def test_a_prediction_that_comes_true_saves_most_cycles(engine: Engine, kept: KeepsTokens) -> None:
    """Whatever has been learnt of times; a CopyTimes of its own keeps the machine out of it."""
    wanted = answered(engine, kept, prompt(50), 60, sampling=WARM)
    engine._copy_times = CopiesCostNothing()
    try:
        c = run(engine, prompt(50), 60, sampling=WARM, prediction=wanted)[1].counters
    finally:
        engine._copy_times = CopyTimes()
    assert c.cycles < 12
    assert c.copied_accepted > 45


def test_nothing_is_copied_without_speculation(engine: Engine) -> None:
    counters = run(engine, prompt(50), 30, prediction=tuple(prompt(50)), speculate=False)[1].counters
    assert (counters.drafted, counters.copied) == (0, 0)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 18, 33])
def test_copied_drafts_end_with_the_limit_and_with_the_context(engine: Engine, kept: KeepsTokens, length: int) -> None:
    for ids, max_tokens in ((prompt(40), length), (prompt(CONTEXT - length), 100)):
        wanted = answered(engine, kept, ids, max_tokens, sampling=WARM)
        more = answered(engine, kept, ids[-40:], 60, sampling=WARM)
        kept.tokens.clear()
        finished = run(engine, ids, max_tokens, sampling=WARM, prediction=(*wanted, *more))[1]
        assert (finished.reason, finished.counters.generated) == ("length", length)
        assert tuple(kept.tokens) == wanted


def test_an_end_token_among_copied_drafts_ends_the_answer(engine: Engine, kept: KeepsTokens) -> None:
    (end, *_) = sorted(engine.tokenizer.end_tokens)
    ended = 0
    for seed in range(12):
        sampling = SamplingParams(temperature=20.0, seed=seed)
        wanted = answered(engine, kept, prompt(5, seed), 60, sampling=sampling)
        for token in engine.tokenizer.end_tokens:
            kept.tokens.clear()
            old = (*wanted, token, *wanted)
            finished = run(engine, prompt(5, seed), 60, sampling=sampling, prediction=old)[1]
            assert tuple(kept.tokens) == wanted
            ended += finished.reason == "end"
        assert end not in wanted
    assert ended > 3


def test_a_stop_rule_ends_an_answer_within_copied_drafts(engine: Engine, kept: KeepsTokens) -> None:
    wanted = answered(engine, kept, prompt(20), 60, sampling=WARM)
    whole, _ = run(engine, prompt(20), 60, sampling=WARM)
    for at in (1, 7, len(whole) // 3, len(whole) // 2):
        rule = Rule(lambda text, at=at: at if len(text) > at else None)
        text, finished = run(engine, prompt(20), 60, sampling=WARM, stop=rule, prediction=wanted)
        assert (text, finished.reason) == (whole[:at], "stop")
        plain = run(engine, prompt(20), 60, sampling=WARM, stop=rule, speculate=False)[1]
        assert finished.counters.generated == plain.counters.generated


def test_a_cancelled_answer_of_copied_drafts_ends_within_one_cycle(
    engine: Engine, kept: KeepsTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = answered(engine, kept, prompt(40), 200, sampling=WARM)
    with Gate(engine, monkeypatch, "decode", at_call=4) as gate:
        generation = engine.submit(ask(engine, prompt(40), 200, sampling=WARM, prediction=wanted))
        assert gate.reached.wait(20)
        generation.cancel()
    assert collect(generation)[1].reason == "cancelled"
    assert gate.calls <= 4
    kept.tokens.clear()
    run(engine, prompt(40), 200, sampling=WARM, prediction=wanted)
    assert tuple(kept.tokens) == wanted


@pytest.mark.parametrize("where", ["prefill", "decode", "mtp_rows", "draft_logits", "logits", "mtp_fill"])
def test_u30_a_cancelled_request_ends_within_one_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with Gate(engine, monkeypatch, where, at_call=2) as gate:
        generation = engine.submit(ask(engine, prompt(900), 100))
        assert gate.reached.wait(20)
        generation.cancel()
    _, finished = collect(generation)
    assert finished.reason == "cancelled"
    assert gate.calls <= (8 if where in ("mtp_rows", "draft_logits") else 4 if where == "mtp_fill" else 2)
    if where == "prefill":
        assert finished.counters.prefilled == 512, "what was computed is counted"
        assert run(engine, prompt(900), 1)[1].counters.reused == 512, "and stays in the cache"


def test_leaving_the_iteration_cancels(engine: Engine) -> None:
    for _ in engine.submit(ask(engine, prompt(20), 900, sampling=SamplingParams(temperature=1.0, seed=3))):
        break
    for _ in range(500):
        if engine._scheduler.load == (0, 0):
            return
        time.sleep(0.01)
    pytest.fail("the engine goes on with a generation nobody reads")


def test_u32_cancelling_one_request_touches_no_other(engine: Engine) -> None:
    alone = [run(engine, prompt(50 + n, n), 30) for n in range(8)]
    rng = random.Random(1)
    for _ in range(6):
        engine._cache.clear()
        generations = [engine.submit(ask(engine, prompt(50 + n, n), 30)) for n in range(8)]
        gone = {n for n in range(8) if rng.random() < 0.5}
        time.sleep(rng.random() * 0.02)
        for n in gone:
            generations[n].cancel()
        for n, generation in enumerate(generations):
            text, finished = collect(generation)
            if n in gone:
                assert finished.reason in ("cancelled", "length", "end")
                assert alone[n][0].startswith(text)
            else:
                assert text == alone[n][0]
                assert finished.reason == alone[n][1].reason


def test_u31_hundreds_of_cancels_leave_the_engine_as_it_was(model_file: Path) -> None:
    """In float64, where a kept prefix and a fresh one give the same text whichever way they were computed."""
    engine = Engine(model_file, threads=1, dtype=torch.float64, cache_bytes=6_000_000)
    fresh = Engine(model_file, threads=1, dtype=torch.float64, cache_bytes=0)
    rng = random.Random(2)
    prompts = [prompt(rng.randrange(20, 400), n) for n in range(4)]
    for base in list(prompts):
        prompts.append(base[: rng.randrange(1, len(base))] + prompt(30, len(base)))
    wanted = [run(fresh, ids, 16) for ids in prompts]
    threads = threading.active_count()
    for _ in range(200):
        generation = engine.submit(ask(engine, rng.choice(prompts), 30))
        if rng.random() < 0.9:
            time.sleep(rng.random() ** 3 * 0.08)
            generation.cancel()
        finished = collect(generation)[1]
        assert finished.reason in ("cancelled", "length", "end")
        assert engine._cache.nbytes <= 6_000_000
    for ids, (text, _) in zip(prompts, wanted, strict=True):
        assert run(engine, ids, 16)[0] == text
    assert threading.active_count() == threads
    assert engine._scheduler.load == (0, 0)
    engine.close()
    fresh.close()


def test_finished_answers_hold_no_sequences_however_many_are_still_referred_to(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of requests is in memory until the garbage collector comes by: what they computed must not be."""
    engine = Engine(model_file, threads=1, cache_bytes=0)
    new_state, made = engine._cache._new_state, []

    def watched() -> Any:
        state = new_state()
        made.append(weakref.ref(state))
        return state

    monkeypatch.setattr(engine._cache, "_new_state", watched)
    gc.collect()
    gc.disable()
    try:
        generations = [engine.submit(ask(engine, prompt(40, n), 4)) for n in range(12)]
        generations[-1].cancel()
        for generation in generations:
            collect(generation)
        run(engine, prompt(8), 1)  # so that the worker has turned to something else
        assert len(made) >= 12
        assert sum(state() is not None for state in made[:-1]) == 0
    finally:
        gc.enable()
        engine.close()


def test_u36_mixed_conversations_leak_nothing_into_each_other(model_file: Path) -> None:
    """Each conversation has its canary token in an equal frame; each goes on as if it were alone."""
    engine = Engine(model_file, threads=1, dtype=torch.float64, cache_bytes=8_000_000)
    alone = Engine(model_file, threads=1, dtype=torch.float64, cache_bytes=0)
    rng = random.Random(3)
    frame = prompt(200, 99)
    talks = [[*frame[:150], canary, *frame[150:], *prompt(rng.randrange(5, 60), canary)] for canary in range(12)]
    reused = 0
    for turn in range(40):
        n = rng.randrange(len(talks))
        text, finished = run(engine, talks[n], 8)
        assert text == run(alone, talks[n], 8)[0]
        assert finished.counters.reused + finished.counters.prefilled == len(talks[n])
        reused += finished.counters.reused
        talks[n] = talks[n] + prompt(rng.randrange(1, 20), turn) if len(talks[n]) < 500 else talks[n][:210]
    assert reused > 1500
    engine.close()
    alone.close()


def test_completions_go_before_background_and_equals_in_order(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TURN_S", 1e9)  # however slow the machine is
    finished: list[str] = []

    def follow(name: str, generation: Generation) -> threading.Thread:
        thread = threading.Thread(target=lambda: (collect(generation), finished.append(name)))
        thread.start()
        return thread

    def submit(name: str, seed: int, **more: Any) -> threading.Thread:
        return follow(name, engine.submit(ask(engine, prompt(30, seed), 12, **more)))

    with Gate(engine, monkeypatch, "decode", at_call=3) as gate:
        threads = [submit("running background", 0, priority="background")]
        assert gate.reached.wait(20)
        threads.append(submit("background", 1, priority="background"))
        threads.append(submit("first", 2))
        threads.append(submit("second", 3))
        assert engine._scheduler.load == (1, 3)
    for thread in threads:
        thread.join(20)
    assert finished == ["first", "second", "running background", "background"]


def test_an_interrupted_background_answer_goes_on_unchanged(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(80, 7)
    wanted, _ = run(engine, ids, 60)
    engine._cache.clear()
    with Gate(engine, monkeypatch, "decode", at_call=5) as gate:
        background = engine.submit(ask(engine, ids, 60, priority="background"))
        assert gate.reached.wait(20)
        completion = engine.submit(ask(engine, ids[:70], 20))
    assert collect(completion)[1].reason in ("length", "end")
    assert collect(background)[0] == wanted


@pytest.mark.parametrize("where", ["prefill", "decode", "logits", "mtp_rows"])
def test_an_error_in_the_worker_ends_that_request_and_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wanted, _ = run(engine, prompt(600), 20)
    engine._cache.clear()
    engine._controller = DepthController()
    inner = getattr(engine.model, where)
    calls = 0

    def fails(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        result = inner(*args)
        if calls == 2:
            raise RuntimeError("a planted\nfault")
        return result

    monkeypatch.setattr(engine.model, where, fails)
    first = engine.submit(ask(engine, prompt(600), 20))
    second = engine.submit(ask(engine, prompt(600), 20))
    finished = collect(first)[1]
    assert finished.reason == "error"
    assert "RuntimeError: a planted fault" in finished.detail
    assert "\n" not in finished.detail
    text, finished = collect(second)
    assert text == wanted
    assert finished.counters.reused == 0, "a state of which nobody knows what it holds is not kept"


def test_a_stop_rule_that_fails_is_an_error_of_its_request(engine: Engine) -> None:
    def fails(text: str) -> int | None:
        raise KeyError("x")

    assert run(engine, prompt(20), 20, stop=Rule(fails), sampling=WARM)[1].reason == "error"
    assert run(engine, prompt(20), 20)[1].reason in ("length", "end")


def test_logits_that_are_not_numbers_are_an_error_with_a_way_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = engine.model.logits
    monkeypatch.setattr(engine.model, "logits", lambda hidden: logits(hidden) * float("nan"))
    finished = run(engine, prompt(20), 20)[1]
    assert finished.reason == "error"
    assert "not numbers" in finished.detail


def test_u09_every_request_ends_with_exactly_one_reason_when_the_engine_closes(model_file: Path) -> None:
    engine = Engine(model_file, threads=1)
    generations = [engine.submit(ask(engine, prompt(300, n), 500)) for n in range(5)]
    time.sleep(0.05)
    engine.close()
    for generation in generations:
        events: list[Event] = list(generation)
        assert sum(isinstance(event, FinishedEvent) for event in events) == 1
        assert events[-1].reason in ("cancelled", "length", "end")
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit(ask(engine, [1]))


def test_events_can_be_awaited(engine: Engine) -> None:
    async def talk() -> tuple[list[Event], list[Event]]:
        async def listen(generation: Generation) -> list[Event]:
            return [event async for event in generation]

        both = [engine.submit(ask(engine, prompt(60, n), 20, sampling=WARM)) for n in range(2)]
        first, second = await asyncio.gather(*map(listen, both))
        return first, second

    for n, events in enumerate(asyncio.run(talk())):
        text = "".join(event.text for event in events if isinstance(event, TextEvent))
        assert text == run(engine, prompt(60, n), 20, sampling=WARM)[0]


def test_a_cancelled_task_cancels_its_generation(engine: Engine) -> None:
    async def talk() -> None:
        async def listen(generation: Generation) -> None:
            async for _ in generation:
                pass

        task = asyncio.create_task(listen(engine.submit(ask(engine, prompt(20), 1000))))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(talk())
    assert run(engine, prompt(30), 5)[1].reason in ("length", "end")
    assert engine._scheduler.load == (0, 0)


def test_a_file_that_is_no_model_is_refused_by_the_constructor(tmp_path: Path) -> None:
    from server.gguf.errors import ModelFileError

    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError, match="broken"):
        Engine(path, threads=1)


def test_a_model_whose_outputs_are_not_numbers_is_refused_by_name(tmp_path: Path) -> None:
    def edit(metadata: Any, tensors: Any) -> None:
        tensors["blk.0.ssm_a"][:] = 1e6  # a state that grows, and soon beyond all numbers

    path = write_tiny_model(tmp_path / "m.gguf", edit=edit)
    with pytest.raises(UselessWeights, match=r"m\.gguf: what the model computes is not numbers"):
        Engine(path, threads=1)


def test_an_engine_that_started_on_a_busy_machine_uses_all_threads_once_it_is_quiet(model_file: Path) -> None:
    free = [1]
    engine = Engine(model_file, threads=2, free_cpus=lambda: free[0])
    run(engine, prompt(40), 8)
    assert engine._measured.prefill._counts == [1]
    free[0] = 2
    run(engine, prompt(40, 1), 8)
    run(engine, prompt(40, 2), 8)  # the measurement came after the one before
    measured = engine._measured
    assert measured.prefill._counts == measured.decode._counts == [1, 2]
    run(engine, prompt(40, 3), 8)
    assert engine._measured is measured
    engine.close()


def test_near_ties_are_the_only_difference_between_a_warm_and_a_cold_run(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float32: a prefix that was decoded, or cut elsewhere, may differ in its last bits."""
    tokens: list[int] = []
    push = AnswerText.push
    monkeypatch.setattr(AnswerText, "push", lambda self, token: (tokens.append(token), push(self, token))[1])

    def answer(engine: Engine, ids: list[int]) -> list[int]:
        tokens.clear()
        run(engine, ids, 24)
        return list(tokens)

    warm = Engine(model_file, threads=1)
    cold = Engine(model_file, threads=1, cache_bytes=0)
    ids = prompt(200, 5)
    ties = 0
    for step in range(9):
        first, second = answer(warm, ids), answer(cold, ids)
        if first != second:
            ties += 1
            shared = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
            assert gap_after(cold, ids + first[:shared]) < 1e-3
        ids = ids + first[: step % 7] + prompt(9, step) if step % 3 else ids[:-5] + prompt(40, step)
    print(f"near-ties: {ties} of 9")
    for engine in (warm, cold):
        engine.close()


def gap_after(engine: Engine, ids: list[int]) -> float:
    """How far apart the best two logits are."""
    with torch.inference_mode():
        hidden = engine.model.prefill(ids, engine.model.new_state())
        best = engine.model.logits(hidden[-1:])[0].topk(2).values
    return float(best[0] - best[1])
