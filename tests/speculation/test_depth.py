"""The depth controller on simulated machines and texts, where the best achievable rate is known."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from server.speculation.depth import MAX_DEPTH, DepthController

Costs = Callable[[int], float]


def cheap_rows(depth: int) -> float:
    """Packed weights on two cores: rows almost free, a draft step a tenth of a pass."""
    return 0.0104 if depth == 0 else 0.0115 + 0.0017 * depth


def dear_rows(depth: int) -> float:
    """Every row costs as much as a pass: drafting can't pay."""
    return 0.010 * (1 + 1.1 * depth)


class Simulation:
    """Runs a controller on drafts that are right with probability ``truth(confidence)``."""

    def __init__(self, costs: Costs, seed: int = 0, noise: float = 0.05) -> None:
        self.controller = DepthController()
        self.costs = costs
        self.noise = noise
        self.random = random.Random(seed)
        self.depths: Counter[int] = Counter()

    def run(
        self,
        cycles: int,
        confidence: Callable[[random.Random], float],
        truth: Callable[[float], float] = lambda c: c,
        says: bool = True,
    ) -> float:
        """Tokens per second of so many cycles."""
        tokens, seconds = 0, 0.0
        for _ in range(cycles):
            confidences: list[float | None] = []
            chances: list[float] = []
            while self.controller.another(confidences):
                chance = confidence(self.random)
                chances.append(truth(chance))
                confidences.append(chance if says else None)
            accepted = 0
            while accepted < len(chances) and self.random.random() < chances[accepted]:
                accepted += 1
            took = self.costs(len(chances)) * (1 + self.noise * self.random.uniform(-1, 1))
            self.controller.observe(confidences, accepted, took)
            self.depths[len(chances)] += 1
            tokens += accepted + 1
            seconds += took
        return tokens / seconds


def best_fixed_rate(costs: Costs, chance: float) -> float:
    return max(sum(chance**i for i in range(depth + 1)) / costs(depth) for depth in range(MAX_DEPTH + 1))


@pytest.mark.parametrize("chance", [0.95, 0.8, 0.6, 0.3, 0.05, 0.0])
@pytest.mark.parametrize("costs", [cheap_rows, dear_rows])
@pytest.mark.parametrize("says", [True, False])
def test_rate_is_near_that_of_the_best_fixed_depth(costs: Costs, chance: float, says: bool) -> None:
    simulation = Simulation(costs)
    simulation.run(500, lambda _: chance, says=says)
    rate = simulation.run(3000, lambda _: chance, says=says)
    assert rate >= 0.93 * best_fixed_rate(costs, chance)


def test_drafting_is_off_when_it_does_not_pay() -> None:
    simulation = Simulation(dear_rows)
    simulation.run(200, lambda _: 0.5)
    simulation.depths.clear()
    simulation.run(1000, lambda _: 0.5)
    assert not simulation.controller.pays
    assert simulation.depths[0] >= 900


def test_drafting_comes_back_when_the_text_becomes_predictable_and_goes_when_it_ceases_to_be() -> None:
    simulation = Simulation(cheap_rows)
    for chance in (0.02, 0.9, 0.02, 0.9):
        simulation.run(2500, lambda _, chance=chance: chance)
        rate = simulation.run(1000, lambda _, chance=chance: chance)
        assert rate >= 0.92 * best_fixed_rate(cheap_rows, chance)


def sure_or_lost(rng: random.Random) -> float:
    """Half of the drafts are nearly certain, half nearly hopeless."""
    return 0.98 if rng.random() < 0.5 else 0.05


def test_the_drafters_probabilities_are_worth_more_than_a_fixed_depth() -> None:
    def costs(depth: int) -> float:
        return 0.0104 + 0.003 * depth

    deaf = Simulation(costs)
    hearing = Simulation(costs)
    for simulation, says in ((deaf, False), (hearing, True)):
        simulation.run(1000, sure_or_lost, says=says)
    assert hearing.run(5000, sure_or_lost) > 1.05 * deaf.run(5000, sure_or_lost, says=False)


def test_an_overconfident_drafter_is_seen_through() -> None:
    simulation = Simulation(dear_rows)
    simulation.run(500, lambda _: 0.99, truth=lambda _: 0.2)
    rate = simulation.run(3000, lambda _: 0.99, truth=lambda _: 0.2)
    assert rate >= 0.93 * best_fixed_rate(dear_rows, 0.2)


def test_one_slow_cycle_changes_nothing_for_long() -> None:
    simulation = Simulation(cheap_rows)
    simulation.run(500, lambda _: 0.8)
    simulation.controller.observe([0.8, 0.8, 0.8], 0, 30.0)
    assert simulation.run(200, lambda _: 0.8) >= 0.9 * best_fixed_rate(cheap_rows, 0.8)


def test_a_slow_deep_cycle_does_not_forbid_deep_cycles() -> None:
    simulation = Simulation(cheap_rows)
    simulation.run(300, lambda _: 0.9)
    for _ in range(5):
        simulation.controller.observe([0.9] * 7, 7, 0.5)
    simulation.run(150, lambda _: 0.9)
    assert simulation.run(500, lambda _: 0.9) >= 0.93 * best_fixed_rate(cheap_rows, 0.9)


def test_a_busy_while_is_forgotten() -> None:
    rng = random.Random(9)

    def busy_rows(depth: int) -> float:
        return cheap_rows(depth) * rng.choice([1, 3, 10])

    simulation = Simulation(cheap_rows)
    for costs in (cheap_rows, busy_rows, cheap_rows, busy_rows, cheap_rows):
        simulation.costs = costs
        simulation.run(200, lambda _: 0.8)
    assert simulation.run(500, lambda _: 0.8) >= 0.93 * best_fixed_rate(cheap_rows, 0.8)


def test_equal_observations_give_equal_decisions() -> None:
    first, second = Simulation(cheap_rows, seed=5), Simulation(cheap_rows, seed=5)
    assert first.run(700, sure_or_lost) == second.run(700, sure_or_lost)
    assert first.depths == second.depths


def test_never_more_rows_than_the_greatest_depth() -> None:
    simulation = Simulation(lambda depth: 0.01)
    simulation.run(500, lambda _: 1.0)
    assert max(simulation.depths) == MAX_DEPTH
    assert simulation.depths[MAX_DEPTH] > 400
