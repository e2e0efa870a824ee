"""What is told of a long prefill, and when."""

from itertools import pairwise

import pytest

from server.request import PrefillEvent
from server.serving import progress
from server.serving.progress import EVERY_S, QUIET_S, PrefillProgress


def told(times: list[float], total: int = 100) -> list[tuple[float, int]]:
    """When something is told of a prefill that reaches as much more at each of these seconds, and how much is done."""
    now, found = 0.0, list[tuple[float, int]]()

    def show(event: PrefillEvent) -> None:
        assert event.total == total
        found.append((now, event.done))

    prefill = PrefillProgress(total, show, lambda: now)
    for n, at in enumerate(times, start=1):
        now = at
        prefill.reached(n * total // len(times))
    return found


def test_a_short_prefill_tells_nothing() -> None:
    assert told([QUIET_S * n / 10 for n in range(10)]) == []
    assert told([0.1, 10 * QUIET_S]) == [], "it is over when it could be told"


def test_a_long_prefill_is_told_after_a_while_then_seldom_and_at_its_end() -> None:
    times = [n * 0.05 for n in range(1, 41)]
    found = told(times)
    assert QUIET_S <= found[0][0] < QUIET_S + 0.1
    assert found[-1] == (times[-1], 100)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(found[:-1])]
    assert len(gaps) >= 4
    assert all(gap >= EVERY_S for gap in gaps)
    assert [done for _, done in found] == sorted({done for _, done in found})


def test_a_planted_event_for_each_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    with pytest.raises(AssertionError):
        test_a_long_prefill_is_told_after_a_while_then_seldom_and_at_its_end()
