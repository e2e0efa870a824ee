"""Where prefills are cut and states are kept."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.cache.borders import (
    CHUNK,
    NEAR,
    ON_CPU,
    ON_GPU,
    ROOM,
    Cutting,
    kept_states,
    prefill_cuts,
    steps_begin,
)

lengths = st.integers(1, 3000)
asked = st.lists(st.integers(-5, 3200), max_size=6)


@given(lengths, asked)
def test_chunks_are_whole_and_steps_few(length: int, checkpoints: list[int]) -> None:
    begin = steps_begin(length, checkpoints)
    assert begin % CHUNK == 0
    assert 0 < length - begin <= 2 * CHUNK + ROOM


@given(lengths, asked)
def test_every_prefill_call_is_small_and_cut_where_no_bit_changes(length: int, checkpoints: list[int]) -> None:
    cuts = [0, *prefill_cuts(length, checkpoints)]
    assert cuts[-1] == steps_begin(length, checkpoints)
    assert all(0 < b - a <= ON_CPU.call and b % CHUNK == 0 for a, b in pairwise(cuts))


@given(lengths, asked)
def test_states_are_kept_where_they_are_asked_for_or_at_the_chunk_before(length: int, checkpoints: list[int]) -> None:
    kept, begin = kept_states(length, checkpoints), steps_begin(length, checkpoints)
    assert {k for k in kept if k <= begin} <= set(prefill_cuts(length, checkpoints))
    assert all((c if c > begin else c // CHUNK * CHUNK) in {0, *kept} for c in checkpoints if 0 < c < length)
    assert set(range(ON_CPU.spacing, begin + 1, ON_CPU.spacing)) <= kept
    assert length in kept


@given(st.integers(1, 9000), st.lists(st.integers(-5, 9200), max_size=6))
def test_on_a_gpu_all_is_chunks_cut_where_states_are_kept(length: int, checkpoints: list[int]) -> None:
    cuts, kept = prefill_cuts(length, checkpoints, ON_GPU), kept_states(length, checkpoints, ON_GPU)
    assert cuts[-1] == steps_begin(length, checkpoints, ON_GPU) == length
    assert all(0 < b - a <= ON_GPU.call for a, b in pairwise([0, *cuts]))
    assert {length, *(c for c in checkpoints if 0 < c < length)} <= kept <= set(cuts)
    assert set(range(ON_GPU.spacing, length, ON_GPU.spacing)) <= kept


@given(lengths, asked, st.sampled_from((ON_CPU, ON_GPU)))
def test_a_state_is_kept_shortly_before_the_cursor(length: int, checkpoints: list[int], cutting: Cutting) -> None:
    last = max((c for c in checkpoints if 0 < c < length), default=0)
    cursor = last if length - last < CHUNK else length
    before = [k for k in kept_states(length, checkpoints, cutting) if k <= cursor - ROOM]
    assert cursor < NEAR + ROOM or max(before) > cursor - NEAR - ROOM


def test_nothing_to_prefill_has_no_borders() -> None:
    assert (prefill_cuts(0, [3]), kept_states(0, [3]), steps_begin(0, [3])) == ([], frozenset(), 0)
