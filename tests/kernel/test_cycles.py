"""Whole answers: text, states and the MTP cache are the same whatever was drafted, and planted faults are noticed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cycle_checks import LENGTH, PROMPT, check_text_and_state, reference_text
from small_models import EXACT, KERNEL_LIKE, SIZES, MakeSmall, Small, prompt_of

from server.kernel import sequence
from server.kernel.arithmetic import Arithmetic
from server.kernel.instructions import Attention, MtpInput
from server.kernel.interpreter import Interpreter
from server.kernel.mixers import AttentionMixer, DeltaMixer
from server.kernel.sequence import Buffers, count, folded_memory, hand_back, ring_slots, roll_back, settle
from server.speculation.drafter import MtpDrafter


def test_text_and_state_are_the_same_for_every_depth_and_accepted_count(make_small: MakeSmall) -> None:
    check_text_and_state(make_small("plain", Arithmetic()), tuple(range(1, 8)))


@pytest.mark.parametrize("size", SIZES)
def test_text_is_that_of_the_reference_in_every_size_and_type(make_small: MakeSmall, size: str) -> None:
    check_text_and_state(make_small(size, EXACT), (4,))


def test_text_is_the_same_with_a_kernels_rounding(make_small: MakeSmall) -> None:
    """Eight-bit inputs and a half-precision cache: other text than the reference's, but drafts don't change it."""
    check_text_and_state(make_small("plain", KERNEL_LIKE), (3, 7), reference=False)
    check_text_and_state(make_small("27b", KERNEL_LIKE), (5,), reference=False)


def test_fifteen_given_drafts(make_small: MakeSmall) -> None:
    check_text_and_state(make_small("plain", Arithmetic()), (15,))


@pytest.mark.parametrize("drafts", range(8))
def test_text_is_the_same_with_the_heads_own_drafts(make_small: MakeSmall, drafts: int) -> None:
    small = make_small("plain", EXACT)
    text, _, kept = small.generate(PROMPT, LENGTH, drafts)
    assert text[:LENGTH] == reference_text(small.reference, PROMPT, LENGTH)
    assert all(1 <= tokens <= drafts + 1 for tokens in kept)


# ---------------------------------------------------------------------------------------------------- MTP cache


def check_mtp(small: Small, depths: tuple[int, ...] = (3, 0, 0, 7, 1)) -> None:
    """After cycles of several depths and accepted counts the head drafts as after a fresh prefill of their tokens."""
    truth, _, _ = small.generate(PROMPT, 40)
    at, state = small.start(PROMPT[:-1], PROMPT[-1])
    cycles, text, vocab = small.cycles(at), [], small.model.config.vocab
    for cycle in range(8):
        depth, right = depths[cycle % len(depths)], cycle * 3 % 5
        drafts = truth[len(text) : len(text) + 4]
        given = [token if row < right else (token + 1) % vocab for row, token in enumerate(drafts)]
        text += cycles.cycle(depth, given)
        assert text == truth[: len(text)]
    processed = [*PROMPT, *text[:-1]]
    fresh = small.reference.new_state()
    small.reference.prefill(processed, fresh)
    proposed = MtpDrafter(small.reference, fresh).propose(text[-1], 4, lambda confidences: True)
    fresh = small.reference.new_state()
    small.reference.prefill(processed, fresh)
    missing = hand_back(at, small.model.config, state, processed)
    if missing.ids:
        small.reference.mtp_fill(missing.ids, missing.hidden, state)
    assert state.tokens == fresh.tokens
    assert state.mtp_length == fresh.mtp_length == len(processed)
    for ours, theirs in zip([*state.attention, state.mtp], [*fresh.attention, fresh.mtp], strict=True):
        assert ours is not None
        assert theirs is not None
        for a, b in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            assert torch.allclose(a[:, : len(processed)], b[:, : len(processed)], atol=1e-9, rtol=0)
    assert torch.allclose(state.memory, fresh.memory, atol=1e-9, rtol=0)
    assert all(torch.allclose(a, b, atol=1e-9, rtol=0) for a, b in zip(state.conv, fresh.conv, strict=True))
    assert torch.allclose(state.last_hidden, fresh.last_hidden, atol=1e-9, rtol=0)
    cycles.cycle(4)
    assert at["tokens"][:5].tolist() == [text[-1], *proposed.tokens]


@pytest.mark.parametrize("size", ["plain", "27b"])
def test_the_mtp_cache_and_its_drafts_are_those_of_a_fresh_prefill(make_small: MakeSmall, size: str) -> None:
    check_mtp(make_small(size, EXACT))


def test_a_state_goes_back_and_forth_between_launches_and_the_reference(make_small: MakeSmall) -> None:
    """As the prefix cache does: answer, keep a checkpoint, go on with another prompt, come back to it."""
    small = make_small("plain", EXACT)
    config, reference = small.model.config, small.reference
    truth = reference_text(reference, PROMPT, LENGTH)
    at, state = small.start(PROMPT[:-1], PROMPT[-1])
    text = small.cycles(at).cycle(3, truth[:3])
    missing = hand_back(at, config, state, [*PROMPT, *text[:-1]])
    reference.mtp_fill(missing.ids, missing.hidden, state)
    checkpoint = state.checkpoint()
    reference.prefill(prompt_of(9), state)
    state.restore(checkpoint)
    sequence.take_over(at, config, state, text[-1])
    cycles = small.cycles(at)
    while len(text) < LENGTH:
        text += cycles.cycle(2)
    assert text[:LENGTH] == truth


def test_an_answer_that_ends_inside_a_cycle_goes_on_as_if_it_had_ended_there(make_small: MakeSmall) -> None:
    small = make_small("plain", EXACT)
    truth = reference_text(small.reference, PROMPT, LENGTH)
    at, _ = small.start(PROMPT[:-1], PROMPT[-1])
    cycles = small.cycles(at)
    assert cycles.cycle(2, truth[:5]) == truth[:6]
    roll_back(at, 2)
    text = truth[:2]
    while len(text) < LENGTH:
        text += cycles.cycle(3)
    assert text[:LENGTH] == truth
    with pytest.raises(ValueError, match="can't keep"):
        roll_back(at, 17)


def test_tokens_chosen_by_the_host_count_like_accepted_ones(make_small: MakeSmall) -> None:
    """A sampled cycle: the launch verifies greedily, the host chooses from the logits."""
    small = make_small("plain", EXACT)
    chosen = [9, 8, 7]
    at, _ = small.start(PROMPT[:-1], PROMPT[-1])
    cycles = small.cycles(at)
    cycles.cycle(1, chosen[:2])
    settle(at, chosen, 3)
    straight = small.generate([*PROMPT, *chosen], 8)[0]
    text: list[int] = []
    while len(text) < 8:
        text += cycles.cycle(2)
    assert text[:8] == straight[:8]
    with pytest.raises(ValueError, match="from a launch of 2 rows"):
        settle(at, chosen, 2)


def test_what_does_not_fit_is_refused(make_small: MakeSmall) -> None:
    small = make_small("plain", EXACT)
    with pytest.raises(ValueError, match="don't fit"):
        small.start(prompt_of(33), 1, capacity=32)
    at, state = small.start(prompt_of(5), 1)
    with pytest.raises(ValueError, match="began with"):
        hand_back(at, small.model.config, state, prompt_of(4))


# ---------------------------------------------------------------------------------------------------- planted faults

ROWS = 6


def past_the_rejection(self: DeltaMixer, length: int, fold: int) -> range:
    return range(length - fold, length - fold + ROWS)


def off_by_one(self: DeltaMixer, length: int, fold: int) -> range:
    return range(length - fold - 1, length - 1)


def clamped(self: DeltaMixer, length: int, fold: int) -> range:
    return range(length - fold, length - fold + min(fold, 3))


def not_rolled_back(self: DeltaMixer, length: int, rows: int) -> torch.Tensor:
    """The rows before this cycle's are the last ones that the cycle before computed (the first cycle has none)."""
    end = length if length < len(PROMPT) else length - 2 + ROWS
    taps = self.model.config.conv_kernel
    return ring_slots([*range(end - taps + 1, end), *range(length, length + rows)])


@pytest.mark.parametrize(
    ("method", "fault"),
    [("kept", past_the_rejection), ("kept", off_by_one), ("kept", clamped), ("window", not_rolled_back)],
    ids=["memory kept past a rejection", "ring index off by one", "accepted count clamped", "conv not rolled back"],
)
def test_a_planted_fault_in_the_recurrent_state_is_noticed(
    make_small: MakeSmall, monkeypatch: pytest.MonkeyPatch, method: str, fault: Callable[..., Any]
) -> None:
    small = make_small("plain", Arithmetic())
    original = getattr(DeltaMixer, method)

    def planted(self: DeltaMixer, length: int, n: int) -> Any:
        return (fault if planted.on else original)(self, length, n)  # type: ignore[attr-defined]

    planted.on = False  # type: ignore[attr-defined]
    monkeypatch.setattr(DeltaMixer, method, planted)
    check_text_and_state(small, (ROWS - 1,))
    monkeypatch.setattr(small, "generate", faulty(small.generate, planted))
    with pytest.raises(AssertionError):
        check_text_and_state(small, (ROWS - 1,))


def faulty(generate: Callable[..., Any], planted: Any) -> Callable[..., Any]:
    """Answers with drafts are made with the fault, those without are not: the truth stays the truth."""

    def wrapped(prompt: list[int], length: int, drafts: int = 0, oracle: Any = None) -> Any:
        planted.on = oracle is not None
        try:
            return generate(prompt, length, drafts, oracle)
        finally:
            planted.on = False

    return wrapped


def newest_row_only(self: AttentionMixer, i: Attention, at: Buffers, rows: int) -> None:
    """Planted: of the rows behind, only the newest gets its keys and values."""
    name = f"blk.{i.layer}"
    before = {kv: at[f"{name}.{kv}"].clone() for kv in "kv"}
    ORIGINAL_ATTENTION(self, i, at, rows)
    if i.rows.kind == "behind":
        newest = count(at, "length")
        for kv in "kv":
            before[kv][:, newest] = at[f"{name}.{kv}"][:, newest]
            at[f"{name}.{kv}"][:] = before[kv]


def drafted_rows_stay(self: AttentionMixer, i: Attention, at: Buffers, rows: int) -> None:
    """Planted: a row that is behind isn't made again where a drafted row stands."""
    name = f"blk.{i.layer}"
    before = {kv: at[f"{name}.{kv}"].clone() for kv in "kv"}
    ORIGINAL_ATTENTION(self, i, at, rows)
    if i.rows.kind == "behind":
        for position in range(count(at, "length") - rows + 1, count(at, "length") + 1):
            for kv in "kv":
                if before[kv][:, position].abs().amax() > 0:
                    at[f"{name}.{kv}"][:, position] = before[kv][:, position]


ORIGINAL_ATTENTION = AttentionMixer.run


@pytest.mark.parametrize("fault", [newest_row_only, drafted_rows_stay])
def test_a_stale_mtp_cache_is_noticed(
    make_small: MakeSmall, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None]
) -> None:
    monkeypatch.setattr(AttentionMixer, "run", fault)
    with pytest.raises(AssertionError, match="allclose"):
        check_mtp(make_small("plain", EXACT))


def test_rows_paired_with_the_wrong_hidden_row_are_noticed(
    make_small: MakeSmall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a token goes with its own hidden row, not with that of the token before."""
    original = Interpreter._mtp_input

    def own_hidden(self: Interpreter, i: MtpInput, at: Buffers) -> None:
        original(self, i, at if i.step else {**at, "hidden": at["hidden"].roll(-1, 0)})

    monkeypatch.setattr(Interpreter, "_mtp_input", own_hidden)
    with pytest.raises(AssertionError, match="allclose"):
        check_mtp(make_small("plain", EXACT))


def test_a_checkpoint_one_row_short_is_noticed(make_small: MakeSmall, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(at: Buffers, i: int, positions: range) -> torch.Tensor:
        return folded_memory(at, i, positions[:-1])

    monkeypatch.setattr(sequence, "folded_memory", short)
    with pytest.raises(AssertionError, match="allclose"):
        check_mtp(make_small("plain", EXACT))
