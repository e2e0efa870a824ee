"""How many drafts are copied, on simulated machines: many where copies come true, none where they don't."""

import random
from collections.abc import Callable

import pytest

from server.speculation.copies import LENGTHS, Copies, CopyTimes

Costs = Callable[[int], float]


def flat(drafts: int) -> float:
    """Rows almost free, as on a GPU up to 8; the first 16 have a step."""
    return 0.006 * (1 + 0.03 * drafts) if drafts < 8 else 0.0113


def dear(drafts: int) -> float:
    """A row costs more than a pass."""
    return 0.005 * (1 + 1.2 * drafts)


def answer(
    new: list[int], old: list[int], times: CopyTimes, costs: Costs, rate: float = 0.0
) -> tuple[float, list[int]]:
    """-> seconds, and the drafts of each cycle. A cycle without copies takes what one of no drafts takes."""
    copies = Copies(old, times)
    copies.push(new[:1])
    made, seconds, lengths = 1, 0.0, []
    while made < len(new):
        drafts = copies.propose(len(new) - made - 1, rate)
        assert len(drafts) <= max(0, len(new) - made - 1)
        assert not drafts or len(drafts) in LENGTHS
        right = 0
        while right < len(drafts) and new[made + right] == drafts[right]:
            right += 1
        copies.push(new[made : made + right + 1])
        made += right + 1
        seconds += costs(len(drafts))
        if drafts:
            copies.observe(len(drafts), costs(len(drafts)))
        lengths.append(len(drafts))
    return seconds, lengths


def text(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


def changed(old: list[int], every: int) -> list[int]:
    """One token of so many is another, here and there."""
    rng = random.Random(every)
    return [5000 + n if rng.random() < 1 / every else token for n, token in enumerate(old)]


def test_a_text_that_is_copied_whole_is_copied_in_the_longest_drafts() -> None:
    old = text(300)
    seconds, lengths = answer(old, old, CopyTimes(), flat)
    assert lengths.count(15) > 12
    assert seconds < 299 * flat(0) / 5


@pytest.mark.parametrize("costs", [flat, dear])
def test_what_never_comes_true_is_soon_not_drafted_any_more(costs: Costs) -> None:
    old = text(100)
    new = [
        token for pair in zip(text(400, 1), text(400, 2), strict=True) for token in (pair[0] + 2000, old[pair[1] % 90])
    ]
    seconds, lengths = answer(new, old, CopyTimes(), costs, rate=1 / costs(0))
    assert sum(map(bool, lengths[100:])) < 0.05 * len(lengths)
    assert seconds < 1.1 * len(new) * costs(0)


def test_rows_that_cost_more_than_a_pass_are_not_drafted() -> None:
    times = CopyTimes()
    old = text(2000)
    _, lengths = answer(changed(old, 9), old, times, dear, rate=1 / dear(0))
    assert sum(lengths[-300:]) < 30


def test_an_engine_that_is_faster_without_copies_makes_none() -> None:
    old = text(300)
    times = CopyTimes()
    answer(old, old, times, flat)
    assert sum(answer(old, old, times, flat, rate=16 / flat(15))[1]) == 0
    assert sum(answer(old, old, times, flat, rate=8 / flat(15))[1]) > 200


@pytest.mark.parametrize("every", [4, 12, 40, 200])
@pytest.mark.parametrize("costs", [flat, lambda drafts: 0.005 * (1 + 0.1 * drafts)])
def test_lengths_are_nearly_as_good_as_the_best_fixed_one(every: int, costs: Costs) -> None:
    old = text(1200)
    new = changed(old, every)
    times = CopyTimes()
    answer(new, old, times, costs)
    seconds, _ = answer(new, old, times, costs)

    class Always(CopyTimes):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.level, self.length = 1.0, length

        def seconds(self, length: int) -> float:
            return 0.5 if length == self.length else 1e9

        def add(self, length: int, seconds: float) -> None:
            pass

    best = min(answer(new, old, Always(length), costs)[0] for length in LENGTHS)
    assert seconds < 1.1 * best


def test_times_follow_the_machine() -> None:
    times = CopyTimes()
    for _ in range(200):
        for length in LENGTHS:
            times.add(length, flat(length))
    for length in LENGTHS:
        assert times.seconds(length) == pytest.approx(flat(length), rel=0.05)
    for _ in range(60):
        times.add(7, 3 * flat(7))
    assert times.seconds(7) == pytest.approx(3 * flat(7), rel=0.1)
    assert times.seconds(15) > 1.5 * flat(15), "a machine that is slower is so for all lengths"


def test_a_slow_first_cycle_is_not_taken_for_the_machine() -> None:
    times = CopyTimes()
    times.add(7, 100 * flat(7))
    times.add(7, flat(7))
    assert times.seconds(7) == pytest.approx(flat(7))


def test_equal_observations_give_equal_drafts() -> None:
    old = text(500)
    new = changed(old, 11)
    assert answer(new, old, CopyTimes(), flat) == answer(new, old, CopyTimes(), flat)
