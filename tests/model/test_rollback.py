"""Decoded rows can be taken back, and a sequence can go back to a checkpoint, without a trace."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from state_checks import ModelMaker, after_cycle, after_restore, after_rollback, decode_in, differences, tokens

from server.model.hybrid import HybridModel
from server.model.linear import MAX_ROWS
from server.model.state import Checkpoint, SequenceState

PROMPT = tokens(70, 250)
ROWS = tokens(MAX_ROWS, 250, seed=1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, MAX_ROWS])
def test_rollback_leaves_what_the_kept_rows_alone_would_have_left(model: HybridModel, rows: int) -> None:
    for keep in range(rows + 1):
        assert after_rollback(model, PROMPT, ROWS[:rows], keep) == [], f"{keep} of {rows} rows kept"


@pytest.mark.parametrize("shape", ["odd", "wide"])
@pytest.mark.parametrize("variant", ["float32", "float64"])
def test_rollback_in_other_shapes_and_types(make_model: ModelMaker, shape: str, variant: str) -> None:
    for keep in range(6):
        assert after_rollback(make_model(shape, variant), PROMPT[:10], ROWS[:5], min(keep, 5)) == []


def test_rollback_of_the_very_first_rows(model: HybridModel) -> None:
    for keep in range(4):
        assert after_rollback(model, [], ROWS[:3], keep) == []


def test_rows_may_be_taken_back_in_several_steps_and_in_every_decode(model: HybridModel) -> None:
    state, straight = model.new_state(), model.new_state()
    for each in (state, straight):
        model.prefill(PROMPT, each)
    model.decode(ROWS[:6], state)
    state.rollback(5)
    state.rollback(2)
    model.decode(ROWS[8:12], state)
    state.rollback(3)
    model.decode([9], state)
    state.rollback(1)
    decode_in(model, straight, [*ROWS[:2], *ROWS[8:11], 9], (1,))
    assert differences(state, straight) == []


def test_rollback_without_a_decode_is_refused(model: HybridModel) -> None:
    state = model.new_state()
    with pytest.raises(ValueError, match="there are 0"):
        state.rollback(0)
    model.decode(ROWS[:3], state)
    with pytest.raises(ValueError, match="can't keep 4 decoded rows: there are 3"):
        state.rollback(4)
    state.rollback(2)
    with pytest.raises(ValueError, match="there are 2"):
        state.rollback(3)
    model.mtp_fill(state.tokens, torch.zeros(2, model.config.hidden), state)
    model.prefill(PROMPT, state)
    with pytest.raises(ValueError, match="there are 0"):
        state.rollback(0)


@pytest.mark.parametrize("rows", [0, MAX_ROWS + 1])
def test_decode_takes_one_to_sixteen_rows(model: HybridModel, rows: int) -> None:
    with pytest.raises(ValueError, match=f"not {rows}"):
        model.decode([1] * rows, model.new_state())


@pytest.mark.parametrize("length", [0, 1, 63, 64, 70])
def test_a_restored_checkpoint_is_where_it_was_taken(model: HybridModel, length: int) -> None:
    assert after_restore(model, PROMPT[:length], ROWS) == []


def test_a_checkpoint_survives_what_happens_after_it(model: HybridModel) -> None:
    """Taken in the middle of decoding, after a rollback, and restored twice."""
    state, straight = model.new_state(), model.new_state()
    for each in (state, straight):
        model.prefill(PROMPT, each)
        model.decode(ROWS[:4], each)
        each.rollback(3)
    checkpoint = state.checkpoint()
    for more in (ROWS[4:9], ROWS[9:12]):
        state.restore(checkpoint)
        assert differences(state, straight) == []
        decode_in(model, state, more, (2,))
    assert checkpoint.length == len(PROMPT) + 3
    assert checkpoint.nbytes > checkpoint.memory.nbytes


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_a_checkpoint_within_a_decode_is_what_a_rollback_would_leave(model: HybridModel, keep: int) -> None:
    state, cut = model.new_state(), model.new_state()
    for each in (state, cut):
        model.prefill(PROMPT, each)
        model.decode(ROWS[:5], each)
    checkpoint = state.checkpoint(len(PROMPT) + keep)
    assert state.tokens == [*PROMPT, *ROWS[:5]]
    untouched = state.checkpoint()
    cut.rollback(keep)
    state.restore(checkpoint)
    assert differences(state, cut) == []
    model.decode(ROWS[keep:5], cut)
    assert torch.equal(cut.memory, untouched.memory)


def test_a_checkpoint_that_the_last_decode_did_not_pass_is_refused(model: HybridModel) -> None:
    state = model.new_state()
    model.prefill(PROMPT, state)
    with pytest.raises(ValueError, match="doesn't lead past"):
        state.checkpoint(len(PROMPT) - 1)
    model.decode(ROWS[:3], state)
    for length in (len(PROMPT), len(PROMPT) + 4):
        with pytest.raises(ValueError, match="doesn't lead past"):
            state.checkpoint(length)


def test_a_checkpoint_of_other_tokens_is_refused(model: HybridModel) -> None:
    state = model.new_state()
    start = state.checkpoint()
    model.prefill(PROMPT, state)
    checkpoint = state.checkpoint()
    state.restore(start)
    with pytest.raises(ValueError, match="other tokens"):
        state.restore(checkpoint)
    model.prefill([*PROMPT[:-1], (PROMPT[-1] + 1) % 250], state)
    with pytest.raises(ValueError, match="other tokens"):
        state.restore(checkpoint)


def test_the_mtp_cache_after_a_cycle_holds_rows_of_true_hiddens_only(exact_model: HybridModel) -> None:
    assert after_cycle(exact_model, PROMPT, bound=1e-11) == []


def test_memory_of_a_sequence_grows_by_blocks(model: HybridModel) -> None:
    state = model.new_state()
    sizes = set()
    for _ in range(40):
        model.prefill(PROMPT[:25], state)
        sizes.add(state.nbytes)
    assert 3 <= len(sizes) <= 6


class Faults:
    """Ways to be wrong that this room exists to avoid; each is a patch of SequenceState."""

    @staticmethod
    def memory_kept_past_a_rejection(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SequenceState, "_rewind_memory", lambda self, window, keep: None)

    @staticmethod
    def conv_window_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SequenceState, "_rewind_conv", lambda self, window, keep: None)

    @staticmethod
    def mtp_rows_of_drafts_kept(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SequenceState, "truncate_mtp", lambda self, length: None)

    @staticmethod
    def mtp_rows_of_accepted_drafts_kept(patch: pytest.MonkeyPatch) -> None:
        """Their tokens are right, but they were made from drafted hiddens: nothing replaces them."""
        cut = SequenceState.truncate_mtp
        patch.setattr(SequenceState, "truncate_mtp", lambda self, length: cut(self, length + 1))
        patch.setattr(HybridModel, "mtp_fill", skipped_after_prefill(HybridModel.mtp_fill))

    @staticmethod
    def checkpoint_one_token_early(patch: pytest.MonkeyPatch) -> None:
        take = SequenceState.checkpoint

        def early(self: SequenceState) -> Checkpoint:
            checkpoint = take(self)
            return replace(checkpoint, tokens=checkpoint.tokens[:-1])

        patch.setattr(SequenceState, "checkpoint", early)


def skipped_after_prefill(fill: Callable[..., None]) -> Callable[..., None]:
    def skipping(self: HybridModel, ids: list[int], hidden: torch.Tensor, state: SequenceState) -> None:
        if state.window is None:
            fill(self, ids, hidden, state)

    return skipping


def test_fault_memory_kept_past_a_rejection_is_noticed(model: HybridModel, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults.memory_kept_past_a_rejection(monkeypatch)
    assert after_rollback(model, PROMPT, ROWS[:4], 2) == ["memory", "next rows"]


def test_fault_conv_window_not_rolled_back_is_noticed(model: HybridModel, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults.conv_window_not_rolled_back(monkeypatch)
    assert after_rollback(model, PROMPT, ROWS[:4], 2) == ["conv window", "next rows"]


def test_fault_stale_mtp_rows_are_noticed(exact_model: HybridModel, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults.mtp_rows_of_drafts_kept(monkeypatch)
    assert after_cycle(exact_model, PROMPT, bound=1e-11) == ["mtp length", "next draft"]


def test_fault_mtp_rows_from_drafted_hiddens_are_noticed(
    exact_model: HybridModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    Faults.mtp_rows_of_accepted_drafts_kept(monkeypatch)
    assert after_cycle(exact_model, PROMPT, bound=1e-11) == ["mtp keys and values", "next draft"]


def test_fault_checkpoint_one_token_off_is_noticed(model: HybridModel, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults.checkpoint_one_token_early(monkeypatch)
    assert "rows after it" in after_restore(model, PROMPT, ROWS)
