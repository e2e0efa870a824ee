"""Where prefills are cut and states are kept."""

from hypothesis import given
from hypothesis import strategies as st

from server.cache.borders import CHUNK, SPACING, TAIL, TAIL_ROOM, checkpoint_borders, prefill_borders

lengths = st.integers(1, 3000)
asked = st.lists(st.integers(-5, 3200), max_size=6)


@given(lengths, asked)
def test_every_chunk_is_small_and_the_last_border_is_the_end(length: int, checkpoints: list[int]) -> None:
    borders = prefill_borders(length, checkpoints)
    assert borders[-1] == length
    assert borders == sorted(set(borders))
    assert all(0 < b - a <= CHUNK for a, b in zip([0, *borders], borders, strict=False))


@given(lengths, asked)
def test_states_are_kept_at_borders_of_the_prefill(length: int, checkpoints: list[int]) -> None:
    kept = checkpoint_borders(length, checkpoints)
    assert kept <= set(prefill_borders(length, checkpoints))
    assert {c for c in checkpoints if 0 < c <= length} <= kept
    assert set(range(SPACING, length + 1, SPACING)) <= kept
    assert length in kept


@given(lengths, asked)
def test_a_state_is_kept_shortly_before_the_cursor(length: int, checkpoints: list[int]) -> None:
    cursor = max((c for c in checkpoints if 0 < c < length), default=length)
    before = [k for k in checkpoint_borders(length, checkpoints) if k <= cursor - TAIL_ROOM]
    assert cursor < TAIL + TAIL_ROOM or max(before) > cursor - TAIL - TAIL_ROOM


def test_nothing_to_prefill_has_no_borders() -> None:
    assert prefill_borders(0, [3]) == []
