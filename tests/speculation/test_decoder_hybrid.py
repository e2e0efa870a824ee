"""The decode cycle on a real hybrid model with random weights: rollback, catch-up and checkpoints to the bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle_drafter import AlwaysDraft, OracleDrafter
from predictions import CopiesCostNothing, predictions
from tiny_model import write_tiny_model

from server.cache.prefix import CachedSequence, KeptState, PrefixCache, prefill_step
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.state import Checkpoint, SequenceState
from server.request import SamplingParams
from server.speculation.copies import LENGTHS, Copies, CopyTimes
from server.speculation.decoder import Decoder
from server.speculation.depth import DepthController
from server.speculation.drafter import MtpDrafter
from server.speculation.sampling import Sampler

PROMPT = [(7 * i * i + 3 * i) % 300 for i in range(90)]
LENGTH = 48
GREEDY = SamplingParams()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HybridModel:
    path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=3)
    return HybridModel.load(ModelFile.open(path))


@pytest.fixture(scope="module")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> HybridModel:
    path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=3)
    return HybridModel.load(ModelFile.open(path), dtype=torch.float64)


def answer(
    model: HybridModel,
    drafter: object = None,
    controller: object = None,
    params: SamplingParams = GREEDY,
    state: SequenceState | None = None,
    length: int = LENGTH,
) -> list[int]:
    if state is None:
        state = model.new_state()
        model.prefill(PROMPT, state)
    drafter = drafter(model, state) if callable(drafter) else drafter
    decoder = Decoder(model, state, Sampler(params, PROMPT, model.config.vocab), (), drafter, controller)
    tokens = [decoder.first()]
    while len(tokens) < length:
        tokens += decoder.cycle(length - len(tokens)).tokens
    decoder.finish()
    return tokens


def check_text_is_the_same(model: HybridModel, depth: int = 7) -> set[int]:
    """The same tokens for every accepted count, and in the end the state of a run without drafts."""
    alone = model.new_state()
    model.prefill(PROMPT, alone)
    plain = answer(model, MtpDrafter, DepthController(max_depth=0), state=alone)
    assert len(set(plain)) > 10, "a model that repeats itself would prove nothing"
    counts: set[int] = set()
    for wrong in range(depth + 1):
        state = model.new_state()
        model.prefill(PROMPT, state)
        inner = MtpDrafter(model, state)
        oracle = OracleDrafter(plain, depth, lambda cycle, wrong=wrong: wrong, model.config.vocab, inner)
        controller = AlwaysDraft(depth)
        assert answer(model, oracle, controller, state=state) == plain
        counts |= set(controller.accepted)
        assert state.tokens == alone.tokens
        assert torch.equal(state.memory, alone.memory)
        assert all(map(torch.equal, state.conv, alone.conv))
        assert torch.equal(state.last_hidden, alone.last_hidden)
    return counts


def test_greedy_text_and_state_are_the_same_for_every_accepted_count(model: HybridModel) -> None:
    assert check_text_is_the_same(model) == set(range(8))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, top_p=0.95, seed=4, presence_penalty=0.5)])
def test_text_is_the_same_with_the_models_own_drafts(model: HybridModel, params: SamplingParams) -> None:
    plain = answer(model, params=params)
    for depth in (1, 3, 7):
        assert answer(model, MtpDrafter, AlwaysDraft(depth), params) == plain
    assert answer(model, MtpDrafter, DepthController(), params) == plain


def keep_memory(state: SequenceState) -> None:
    """Planted: S stays past the rejection."""
    state._rewind_memory = lambda window, keep: None


def keep_conv(state: SequenceState) -> None:
    """Planted: the conv window is not rolled back."""
    state._rewind_conv = lambda window, keep: None


def keep_clamped(state: SequenceState) -> None:
    """Planted: the kept rows are clamped to the length of the conv window."""
    rewind = state._rewind_memory
    state._rewind_memory = lambda window, keep: rewind(window, min(keep, 3))


@pytest.mark.parametrize("plant", [keep_memory, keep_conv, keep_clamped])
def test_a_planted_rollback_fault_is_noticed(
    model: HybridModel, monkeypatch: pytest.MonkeyPatch, plant: Callable[[SequenceState], None]
) -> None:
    def faulty() -> SequenceState:
        state = SequenceState(model.config, model.device, model.dtype)
        plant(state)
        return state

    monkeypatch.setattr(model, "new_state", faulty)
    with pytest.raises(AssertionError):
        check_text_is_the_same(model)


def mtp_cache_after_cycles(model: HybridModel, drafter: Callable[..., object], depths: list[int]) -> SequenceState:
    """The state after cycles of these depths with accepted counts that change."""
    plain = answer(model)
    state = model.new_state()
    model.prefill(PROMPT, state)
    inner = drafter(model, state)
    oracle = OracleDrafter(plain, 7, lambda cycle: cycle * 3 % 8, model.config.vocab, inner)
    controller = AlwaysDraft(0)
    decoder = Decoder(model, state, Sampler(GREEDY, PROMPT, model.config.vocab), (), oracle, controller)
    tokens = [decoder.first()]
    cycle = 0
    while len(tokens) < LENGTH:
        controller.depth = depths[cycle % len(depths)]
        tokens += decoder.cycle(LENGTH - len(tokens)).tokens
        cycle += 1
    assert tokens == plain, "drafts never change text"
    decoder.finish()
    return state


def check_mtp_cache(model: HybridModel, drafter: Callable[..., object], depths: list[int]) -> None:
    """The MTP cache after cycles drafts like one that was filled in one prefill."""
    state = mtp_cache_after_cycles(model, drafter, depths)
    fresh = model.new_state()
    model.prefill(state.tokens, fresh)
    assert state.mtp_length == fresh.mtp_length == len(state.tokens)
    rows = [model.draft_logits(model.mtp_rows([5], fresh.last_hidden[None], s)) for s in (state, fresh)]
    assert torch.allclose(*rows, atol=1e-9, rtol=0)


@pytest.mark.parametrize("depths", [[7], [0], [3, 0, 0, 7, 1], [1]])
def test_the_mtp_cache_is_that_of_a_fresh_prefill(exact_model: HybridModel, depths: list[int]) -> None:
    check_mtp_cache(exact_model, MtpDrafter, depths)


class LeavesDraftedRows(MtpDrafter):
    """Planted: rows made from drafted hiddens stay in the MTP cache."""

    def __init__(self, model: HybridModel, state: SequenceState) -> None:
        super().__init__(model, state)
        cut = state.truncate_mtp
        state.truncate_mtp = lambda length: cut(min(length + 1, state.mtp_length))

    def settle(self, kept: list[int], before: torch.Tensor, hidden: torch.Tensor) -> None:
        super().settle(kept, before, hidden)
        if self._state.mtp_length > len(self._state.tokens):
            self._state.mtp_length = len(self._state.tokens)


class CarriesTheWrongRow(MtpDrafter):
    """Planted: accepted drafts are paired with their own hidden, not with that of the token before."""

    def settle(self, kept: list[int], before: torch.Tensor, hidden: torch.Tensor) -> None:
        super().settle(kept, hidden[0], hidden.roll(-1, dims=0))


@pytest.mark.parametrize("fault", [LeavesDraftedRows, CarriesTheWrongRow])
def test_a_stale_mtp_cache_is_noticed(exact_model: HybridModel, fault: type[MtpDrafter]) -> None:
    with pytest.raises(AssertionError, match="allclose"):
        check_mtp_cache(exact_model, fault, [3, 0, 0, 7, 1])


PARAMS = [GREEDY, SamplingParams(temperature=1.0, top_p=0.95, seed=4, presence_penalty=0.5)]


def check_predictions_leave_no_trace(model: HybridModel, params: SamplingParams = GREEDY) -> set[int]:
    """The same tokens and in the end the same state as without -> accepted counts of cycles with 15 copied drafts."""
    length = 64
    alone = model.new_state()
    model.prefill(PROMPT, alone)
    plain = answer(model, MtpDrafter, DepthController(max_depth=0), params, alone, length)
    assert len(set(plain)) > 10, "a model that repeats itself would prove nothing"
    counts: set[int] = set()
    for name, old in predictions(plain, model.config.vocab, model.config.context_length).items():
        state = model.new_state()
        model.prefill(PROMPT, state)
        sampler = Sampler(params, PROMPT, model.config.vocab)
        copies = Copies(old, CopiesCostNothing())
        drafter = MtpDrafter(model, state)
        decoder = Decoder(model, state, sampler, (), drafter, AlwaysDraft(3), copies=copies)
        tokens, cycles = [decoder.first()], []
        while len(tokens) < length:
            cycles.append(decoder.cycle(length - len(tokens)))
            tokens += cycles[-1].tokens
        decoder.finish()
        assert tokens == plain, name
        assert state.tokens == alone.tokens
        assert torch.equal(state.memory, alone.memory), name
        assert all(map(torch.equal, state.conv, alone.conv)), name
        assert state.mtp_length == len(state.tokens)
        assert {cycle.drafted for cycle in cycles if cycle.copied} <= set(LENGTHS)
        if name == "right":
            assert [cycle.accepted for cycle in cycles if cycle.drafted == 15] == [15] * 3
        counts |= {cycle.accepted for cycle in cycles if cycle.copied and cycle.drafted == 15}
    return counts


@pytest.mark.parametrize("params", PARAMS)
def test_no_prediction_changes_text_or_state_whatever_is_accepted(model: HybridModel, params: SamplingParams) -> None:
    assert check_predictions_leave_no_trace(model, params) == set(range(16))


@pytest.mark.parametrize("plant", [keep_memory, keep_conv])
def test_a_planted_rollback_fault_is_noticed_with_predictions(
    model: HybridModel, monkeypatch: pytest.MonkeyPatch, plant: Callable[[SequenceState], None]
) -> None:
    def faulty() -> SequenceState:
        state = SequenceState(model.config, model.device, model.dtype)
        plant(state)
        return state

    monkeypatch.setattr(model, "new_state", faulty)
    with pytest.raises(AssertionError):
        check_predictions_leave_no_trace(model)


def test_the_mtp_cache_behind_copied_drafts_is_that_of_a_fresh_prefill(exact_model: HybridModel) -> None:
    """Rows of up to sixteen accepted tokens are made up for at once, in turn with cycles that draft with the head."""
    model = exact_model
    plain = answer(model, length=90)
    for old in predictions(plain, model.config.vocab, 1).values():
        state = model.new_state()
        model.prefill(PROMPT, state)
        sampler = Sampler(GREEDY, PROMPT, model.config.vocab)
        copies = Copies(old, CopiesCostNothing())
        decoder = Decoder(model, state, sampler, (), MtpDrafter(model, state), AlwaysDraft(2), copies=copies)
        tokens = [decoder.first()]
        while len(tokens) < len(plain):
            tokens += decoder.cycle(len(plain) - len(tokens)).tokens
        assert tokens == plain
        decoder.finish()
        fresh = model.new_state()
        model.prefill(state.tokens, fresh)
        assert state.mtp_length == fresh.mtp_length == len(state.tokens)
        rows = [model.draft_logits(model.mtp_rows([5], fresh.last_hidden[None], s)) for s in (state, fresh)]
        assert torch.allclose(*rows, atol=1e-9, rtol=0)


def test_copies_need_no_head(tmp_path: Path) -> None:
    model = HybridModel.load(ModelFile.open(write_tiny_model(tmp_path / "m.gguf", mtp_layers=0, seed=3)))
    plain = answer(model)
    state = model.new_state()
    model.prefill(PROMPT, state)
    sampler = Sampler(GREEDY, PROMPT, model.config.vocab)
    decoder = Decoder(model, state, sampler, (), copies=Copies(plain, CopyTimes()))
    tokens, cycles = [decoder.first()], 0
    while len(tokens) < LENGTH:
        tokens += decoder.cycle(LENGTH - len(tokens)).tokens
        cycles += 1
    assert tokens == plain
    assert cycles < LENGTH / 3


LONG = [(11 * i * i + 5 * i) % 300 for i in range(1300)]


def check_warm_is_cold(model: HybridModel) -> None:
    """A prompt that branches off a kept one continues as it does on its own."""
    cache = PrefixCache(model.new_state, 10**9)
    previous = LONG
    for at, more in ((1299, [1, 2, 3]), (1290, [4]), (700, [5] * 40), (513, [6]), (600, [7, 8]), (512, [9])):
        for ids, checkpoints in ((previous, (690, 1295)), ([*LONG[:at], *more], (at,))):
            texts = []
            for kept in (cache, PrefixCache(model.new_state, 0)):
                sequence, reused = kept.take(ids, checkpoints)
                prefilled = 0
                while step := prefill_step(model, sequence, ids, checkpoints):
                    prefilled += step
                assert reused + prefilled == len(ids)
                texts.append((answer(model, MtpDrafter, AlwaysDraft(3), state=sequence.state, length=12), sequence))
                kept.give_back(sequence)
            (warm, first), (cold, second) = texts
            assert warm == cold
            assert torch.allclose(first.state.memory, second.state.memory, atol=1e-9, rtol=0)
            assert torch.allclose(torch.stack(first.state.conv), torch.stack(second.state.conv), atol=1e-9, rtol=0)
            assert torch.allclose(first.state.last_hidden, second.state.last_hidden, atol=1e-9, rtol=0)
        previous = ids


def test_a_warm_prompt_continues_as_a_cold_one(exact_model: HybridModel) -> None:
    check_warm_is_cold(exact_model)


def test_a_checkpoint_one_token_off_is_noticed(exact_model: HybridModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_off(self: CachedSequence, length: int) -> None:
        tokens = self.state.tokens[:length]
        before = exact_model.new_state()
        exact_model.prefill(tokens[:-1], before)
        one_off = Checkpoint(tuple(tokens), self.state.last_hidden, before.memory, torch.stack(before.conv))
        self.states.append(KeptState(one_off, min(self.chunked, length)))

    monkeypatch.setattr(CachedSequence, "keep", one_off)
    with pytest.raises(AssertionError):
        check_warm_is_cold(exact_model)
