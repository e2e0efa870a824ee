"""The thread chooser on simulated machines: near the fastest count in quiet and in busy times."""

import random
from collections import Counter

import pytest

from server.threads.chooser import ThreadChooser, physical_cores, thread_counts


class Machine:
    """Costs of a step by thread count; when busy, counts above ``free`` wait for each other."""

    def __init__(self, counts: list[int], seed: int = 0) -> None:
        self.free = max(counts)
        self.random = random.Random(seed)
        self.threads = 0
        self.told = max(counts)
        self.chooser = ThreadChooser({n: self.cost(n) for n in counts}, lambda: self.told, set_threads=self.set)
        self.used: Counter[int] = Counter()

    def set(self, threads: int) -> None:
        self.threads = threads

    def cost(self, threads: int) -> float:
        quiet = 0.004 + 0.020 / threads + 0.0005 * threads
        waiting = 0.300 if threads > self.free else 0.0
        return (quiet + waiting * self.random.random()) * self.random.uniform(0.95, 1.05)

    def run(self, steps: int) -> float:
        total = 0.0
        for _ in range(steps):
            self.chooser.begin()
            cost = self.cost(self.threads)
            self.chooser.end(cost)
            self.used[self.threads] += 1
            total += cost
        return total / steps


@pytest.mark.parametrize("counts", [[1], [1, 2], [1, 2, 4, 8]])
@pytest.mark.parametrize("seed", range(3))
def test_cost_is_near_that_of_the_best_count_in_quiet_and_busy_times(counts: list[int], seed: int) -> None:
    machine = Machine(counts, seed)
    for free in (max(counts), 1, max(counts), max(1, max(counts) // 2)):
        machine.free = free
        machine.run(1200)
        best = min(0.004 + 0.020 / n + 0.0005 * n for n in counts if n <= free)
        assert machine.run(1000) < 1.12 * best


def test_a_busy_core_is_noticed_within_a_few_steps() -> None:
    machine = Machine([1, 2])
    machine.run(200)
    machine.free = 1
    machine.used.clear()
    machine.run(30)
    assert machine.used[1] >= 20


@pytest.mark.parametrize("seed", range(3))
def test_processors_that_others_use_are_never_tried(seed: int) -> None:
    machine = Machine([1, 2, 4, 8], seed)
    machine.run(300)
    machine.free, machine.told = 3, 3
    machine.used.clear()
    cost = machine.run(3000)
    assert max(machine.used) == 2
    assert cost < 1.12 * (0.004 + 0.020 / 2 + 0.0005 * 2)


def test_when_the_others_have_ended_all_counts_are_back_at_once() -> None:
    machine = Machine([1, 2])
    machine.run(300)
    machine.free, machine.told = 1, 1
    machine.run(300)
    machine.free, machine.told = 2, 2
    machine.used.clear()
    machine.run(20)
    assert machine.used[2] >= 18


def test_nothing_free_still_leaves_the_smallest_count() -> None:
    machine = Machine([2, 4])
    machine.told = 1
    machine.run(10)
    assert set(machine.used) == {2}


def test_a_step_that_is_not_measured_runs_on_the_best_count() -> None:
    machine = Machine([1, 2])
    for _ in range(50):
        machine.chooser.begin(measured=False)
        assert machine.threads == 2


def test_counts_are_powers_of_two_and_the_most() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(2) == [1, 2]
    assert thread_counts(6) == [1, 2, 4, 6]
    assert thread_counts(8) == [1, 2, 4, 8]


def test_the_environment_decides_if_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert physical_cores() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert physical_cores() >= 1
