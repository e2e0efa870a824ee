"""Who is served next, by a clock of the test's own: priorities, turns, room, and what is refused."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from server.request import GenerationRequest, Priority
from server.serving import scheduler
from server.serving.scheduler import MOST_REQUESTS, MOST_TOKENS, TURN_S, EngineBusy, Job, Scheduler


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """Works on what the scheduler says, a step of some seconds at a time."""

    def __init__(self, room: float = float("inf")) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler(room, self.clock)

    def submit(self, priority: Priority = "completion", tokens: int = 1, nbytes: int = 0) -> Job:
        return self.scheduler.submit(GenerationRequest([1] * tokens, 8, priority=priority), nbytes)

    def step(self, seconds: float = TURN_S / 10) -> Job:
        job = self.scheduler.next()
        assert job is not None
        self.clock.now += seconds
        return job

    def finish(self, job: Job, seconds: float) -> list[Job]:
        """Steps until a job has had so many seconds of the worker -> who else had some."""
        others, had = [], 0.0
        while had < seconds:
            served = self.step()
            if served is job:
                had += TURN_S / 10
            else:
                others.append(served)
        self.scheduler.remove(job)
        return others


def check_turns(worker: Worker, jobs: list[Job]) -> None:
    served = Counter(id(worker.step()) for _ in range(10 * 40))
    shares = [served[id(job)] for job in jobs]
    assert max(shares) - min(shares) <= 2 * 10, f"steps of equals, with ten in a turn: {shares}"


def test_equals_share_the_worker_in_turns() -> None:
    worker = Worker()
    check_turns(worker, [worker.submit() for _ in range(4)])


def test_planted_service_of_the_first_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TURN_S", 1e9)
    worker = Worker()
    with pytest.raises(AssertionError):
        check_turns(worker, [worker.submit() for _ in range(4)])


def test_equals_that_need_less_than_a_turn_go_in_order() -> None:
    worker = Worker()
    jobs = [worker.submit() for _ in range(5)]
    for job in jobs:
        assert worker.finish(job, 0.8 * TURN_S) == []


def test_one_that_comes_later_neither_waits_for_long_ones_nor_makes_up_for_what_it_missed() -> None:
    worker = Worker()
    old = worker.submit()
    for _ in range(1000):
        assert worker.step() is old
    new = worker.submit()
    served = [worker.step() for _ in range(400)]
    assert new in served[:20], "one turn later at most"
    assert abs(served.count(old) - served.count(new)) <= 20


def test_a_long_step_is_paid_back_to_the_others() -> None:
    worker = Worker()
    long, short = worker.submit(), worker.submit()
    seconds = {long: 0.0, short: 0.0}
    for _ in range(300):
        began = worker.clock.now
        job = worker.scheduler.next()
        assert job is not None
        worker.clock.now += 3 * TURN_S if job is long else TURN_S / 10
        seconds[job] += worker.clock.now - began
    assert seconds[short] == pytest.approx(seconds[long], abs=5 * TURN_S)


def test_a_completion_takes_over_at_the_next_step_and_the_background_goes_on_after_it() -> None:
    worker = Worker()
    background = worker.submit("background")
    rng = random.Random(0)
    for _ in range(50):
        for _ in range(rng.randrange(1, 30)):
            assert worker.step() is background
        completion = worker.submit()
        assert worker.finish(completion, 0.3) == []
    assert worker.scheduler.load == (1, 0)


def test_nobody_starves_among_equals_that_come_and_go() -> None:
    worker, rng = Worker(), random.Random(1)
    patient = worker.submit("background")
    had = 0
    running: dict[Job, int] = {}
    for _ in range(4000):
        if len(running) < 3:
            running[worker.submit("background")] = rng.randrange(1, 60)
        job = worker.step()
        if job is patient:
            had += 1
        else:
            running[job] -= 1
            if not running[job]:
                del running[job]
                worker.scheduler.remove(job)
    assert had > 4000 / 4 * 0.7, "a fourth of the steps is its due"


def test_sequences_of_a_priority_begin_only_where_there_is_room_and_in_order() -> None:
    worker = Worker(room=100)
    jobs = [worker.submit(nbytes=n) for n in (60, 50, 10)]
    for _ in range(100):
        worker.step()
    assert [job.started for job in jobs] == [True, False, False], "the third doesn't overtake the second"
    background = worker.submit("background", nbytes=1000)
    worker.scheduler.remove(jobs[0])
    for _ in range(100):
        worker.step()
    assert [job.started for job in jobs] == [True, True, True]
    for job in jobs[1:]:
        worker.scheduler.remove(job)
    assert worker.step() is background, "one goes, however large it is"


def test_background_work_that_takes_all_its_room_keeps_no_completion_waiting() -> None:
    worker = Worker(room=100)
    for _ in range(3):
        worker.submit("background", nbytes=90)
    worker.step()
    completion = worker.submit(nbytes=90)
    assert worker.step() is completion


def test_a_cancelled_one_ends_at_once_even_if_it_waits_for_room() -> None:
    worker = Worker(room=100)
    worker.submit(nbytes=90)
    waiting = worker.submit("background", nbytes=90), worker.submit(nbytes=90)
    worker.step()
    for job in waiting:
        job.generation.cancel()
        assert worker.step() is job
        worker.scheduler.remove(job)


@pytest.mark.parametrize(("tokens", "taken"), [(1, MOST_REQUESTS), (MOST_TOKENS // 3, 3), (MOST_TOKENS * 2, 1)])
def test_so_many_requests_are_taken_and_no_more_until_one_has_ended(tokens: int, taken: int) -> None:
    worker = Worker()
    jobs = [worker.submit("background", tokens) for _ in range(taken)]
    for _ in range(3):
        with pytest.raises(EngineBusy, match=rf"^{taken} requests \(background\) .* ask again when some have ended$"):
            worker.submit("background", tokens)
    worker.submit(tokens=tokens)  # a completion is not kept out by background work
    worker.scheduler.remove(jobs[0])
    worker.submit("background", tokens)
