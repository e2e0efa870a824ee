"""The decode cycle on a model whose every distribution is known: text is the same whatever is drafted."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from fake_model import FakeModel, FakeState
from goodness import g_test
from oracle_drafter import AlwaysDraft, OracleDrafter

from server.request import SamplingParams
from server.speculation.decoder import Decoder
from server.speculation.depth import DepthController
from server.speculation.drafter import MtpDrafter
from server.speculation.sampling import Sampler

PROMPT = [3, 1, 4, 1, 5]
LENGTH = 60
GREEDY = SamplingParams()


def answer(
    model: FakeModel,
    params: SamplingParams = GREEDY,
    drafter: object = None,
    controller: object = None,
    state: FakeState | None = None,
    length: int = LENGTH,
    end_tokens: frozenset[int] = frozenset(),
) -> list[int]:
    """``length`` tokens, or up to an end token."""
    if state is None:
        state = model.new_state()
        model.prefill(PROMPT, state)
    sampler = Sampler(params, PROMPT, model.config.vocab)
    drafter = drafter(model, state) if callable(drafter) else drafter
    decoder = Decoder(model, state, sampler, end_tokens, drafter, controller, clock=lambda: 0.0)
    tokens = [decoder.first()]
    while len(tokens) < length and tokens[-1] not in end_tokens:
        tokens += decoder.cycle(length - len(tokens)).tokens
    decoder.finish()
    return tokens


def check_text_is_the_same(model: FakeModel) -> None:
    """The property that rollback mistakes break: drafts, right or wrong, leave no trace."""
    plain = answer(model)
    for wrong in range(5):
        oracle = OracleDrafter(plain, 4, lambda cycle, wrong=wrong: wrong, model.config.vocab)
        assert answer(model, drafter=oracle, controller=AlwaysDraft(4)) == plain


@pytest.mark.parametrize("depth", range(1, 8))
def test_greedy_text_is_the_same_at_every_depth_and_every_accepted_count(depth: int) -> None:
    model = FakeModel(vocabulary=50)
    plain = answer(model)
    counts = set()
    for wrong in range(depth + 1):
        controller = AlwaysDraft(depth)
        oracle = OracleDrafter(plain, depth, lambda cycle, wrong=wrong: wrong, 50)
        assert answer(model, drafter=oracle, controller=controller) == plain
        assert controller.accepted[0] == wrong
        counts |= set(controller.accepted)
    assert counts >= set(range(depth + 1))


def test_greedy_text_is_the_same_when_accepted_counts_change_from_cycle_to_cycle() -> None:
    model = FakeModel(vocabulary=50)
    plain = answer(model, length=300)
    for seed in range(5):
        counts = torch.randint(0, 8, (300,), generator=torch.Generator().manual_seed(seed)).tolist()
        oracle = OracleDrafter(plain, 7, counts.__getitem__, 50)
        assert answer(model, drafter=oracle, controller=AlwaysDraft(7), length=300) == plain


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.7, top_p=0.9, top_k=20, seed=2, presence_penalty=1.0),
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.3),
    ],
)
def test_seeded_and_penalised_text_is_the_same_with_drafts(params: SamplingParams) -> None:
    model = FakeModel(vocabulary=50)
    plain = answer(model, params)
    assert plain != answer(model)
    assert answer(model, params, MtpDrafter, AlwaysDraft(5)) == plain
    assert answer(model, params, MtpDrafter, DepthController()) == plain
    oracle = OracleDrafter(plain, 6, lambda cycle: cycle % 7, 50)
    assert answer(model, params, oracle, AlwaysDraft(6)) == plain


def test_sampled_text_with_drafts_has_the_models_own_distribution() -> None:
    model = FakeModel(vocabulary=4, contexts=7, scale=0.7)
    law = {}
    for text in itertools.product(range(4), repeat=3):
        state = model.new_state()
        hidden = model.prefill(PROMPT, state)[-1]
        probability = 1.0
        for token in text:
            probability *= float(torch.softmax(model.logits(hidden[None])[0], dim=0)[token])
            hidden = state.step(token)
        law[text] = probability
    assert sum(law.values()) == pytest.approx(1)
    start = model.new_state()
    model.prefill(PROMPT, start)
    drawn: Counter = Counter()
    for seed in range(2500):
        params = SamplingParams(temperature=1.0, seed=seed)
        drawn[tuple(answer(model, params, MtpDrafter, AlwaysDraft(2), start.copy(), length=3))] += 1
    assert g_test(drawn, law) > 1e-3


def test_drafts_of_a_perfect_head_are_all_accepted() -> None:
    controller = AlwaysDraft(4)
    answer(FakeModel(vocabulary=50), drafter=MtpDrafter, controller=controller)
    assert controller.accepted[:-1] == [4] * (len(controller.accepted) - 1)


def test_the_mtp_cache_is_that_of_a_fresh_prefill() -> None:
    for depths in ([4], [0], [0, 3, 0, 0, 7, 1], [0] * 40 + [2]):
        model = FakeModel(vocabulary=50)
        model.head_errs_every = 5
        state = model.new_state()
        model.prefill(PROMPT, state)
        controller = AlwaysDraft(0)
        sampler = Sampler(SamplingParams(), PROMPT, 50)
        decoder = Decoder(model, state, sampler, (), MtpDrafter(model, state), controller)
        decoder.first()
        for cycle in range(90):
            controller.depth = depths[cycle % len(depths)]
            decoder.cycle(8)
        decoder.finish()
        fresh = model.new_state()
        model.prefill(state.tokens, fresh)
        assert state.mtp == fresh.mtp


def test_the_state_holds_verified_tokens_only() -> None:
    model = FakeModel(vocabulary=50)
    state = model.new_state()
    model.prefill(PROMPT, state)
    oracle = OracleDrafter(answer(model), 5, lambda cycle: cycle % 6, 50)
    tokens = answer(model, drafter=oracle, controller=AlwaysDraft(5), state=state)
    assert state.tokens == PROMPT + tokens[:-1]
    fresh = model.new_state()
    model.prefill(state.tokens, fresh)
    assert (state.recurrent, state.window) == (fresh.recurrent, fresh.window)


def test_text_ends_with_the_end_token_though_drafts_went_on() -> None:
    model = FakeModel(vocabulary=50)
    plain = answer(model)
    first = next(i for i in range(8, 50) if i % 8 and plain[i] not in plain[:i])
    end = plain[first]
    controller = AlwaysDraft(7)
    oracle = OracleDrafter(plain, 7, lambda cycle: 7, 50)
    state = model.new_state()
    model.prefill(PROMPT, state)
    ended = answer(model, drafter=oracle, controller=controller, state=state, end_tokens=frozenset({end}))
    assert ended == plain[: first + 1]
    assert state.tokens == PROMPT + plain[:first], "an end token is not part of what was processed"


def test_a_cycle_gives_no_more_tokens_than_asked_for() -> None:
    model = FakeModel(vocabulary=50)
    for length in range(1, 12):
        assert len(answer(model, drafter=MtpDrafter, controller=AlwaysDraft(7), length=length)) == length


def test_a_cycle_says_what_was_drafted_and_accepted() -> None:
    model = FakeModel(vocabulary=50)
    plain = answer(model)
    state = model.new_state()
    model.prefill(PROMPT, state)
    oracle = OracleDrafter(plain, 5, lambda cycle: 2, 50)
    decoder = Decoder(model, state, Sampler(SamplingParams(), PROMPT, 50), (), oracle, AlwaysDraft(5))
    decoder.first()
    cycle = decoder.cycle(100)
    assert (cycle.tokens, cycle.drafted, cycle.accepted) == (plain[1:4], 5, 2)
    assert model.rows_decoded == [1] * (LENGTH - 1) + [6]


class KeepsRecurrentState(FakeState):
    """Planted: the recurrent state stays where the last drafted row left it."""

    def rollback(self, keep: int) -> None:
        recurrent = self.recurrent
        super().rollback(keep)
        self.recurrent = recurrent


class KeepsConvWindow(FakeState):
    """Planted: the conv window is not rolled back."""

    def rollback(self, keep: int) -> None:
        window = self.window
        super().rollback(keep)
        self.window = window


class KeepsTokens(FakeState):
    """Planted: the KV cache keeps a rejected row."""

    def rollback(self, keep: int) -> None:
        tokens = list(self.tokens)
        dropped = len(self.pending) - keep
        super().rollback(keep)
        if dropped:
            self.tokens = tokens[: len(tokens) - dropped + 1]


class KeepsOneTooFew(FakeState):
    """Planted: the last accepted draft is lost (the wrong row is carried on)."""

    def rollback(self, keep: int) -> None:
        super().rollback(max(1, keep - 1))


@pytest.mark.parametrize("fault", [KeepsRecurrentState, KeepsConvWindow, KeepsTokens, KeepsOneTooFew])
def test_a_planted_rollback_fault_is_noticed(fault: type[FakeState]) -> None:
    class FaultyModel(FakeModel):
        def new_state(self) -> FakeState:
            return fault()

        def decode(self, ids: list[int], state: FakeState) -> torch.Tensor:
            hidden = super().decode(ids, state)
            state.pending = [FakeState(**vars(p)) for p in state.pending]
            return hidden

    check_text_is_the_same(FakeModel(vocabulary=50))
    with pytest.raises(AssertionError):
        check_text_is_the_same(FaultyModel(vocabulary=50))


def leave_drafted_rows(drafter: MtpDrafter) -> None:
    """Planted: the chain's rows stay in the MTP cache."""
    state = drafter._state
    state.truncate_mtp = lambda length: None


def skip_catch_up(drafter: MtpDrafter) -> None:
    """Planted: rows of accepted drafts are made from nothing instead of their true hiddens."""
    settle = drafter.settle
    drafter.settle = lambda kept, before, hidden: settle(kept, before, torch.zeros_like(hidden))


@pytest.mark.parametrize("plant", [leave_drafted_rows, skip_catch_up])
def test_a_stale_mtp_cache_is_noticed(plant: Callable[[MtpDrafter], None]) -> None:
    def faulty(model: FakeModel, state: FakeState) -> MtpDrafter:
        drafter = MtpDrafter(model, state)
        plant(drafter)
        return drafter

    model = FakeModel(vocabulary=50)
    model.head_errs_every = 5
    right, wrong = AlwaysDraft(4), AlwaysDraft(4)
    plain = answer(model)
    assert answer(model, drafter=MtpDrafter, controller=right) == plain
    assert answer(model, drafter=faulty, controller=wrong) == plain, "drafts never change text"
    assert sum(right.accepted) / len(right.accepted) > 2 * sum(wrong.accepted) / len(wrong.accepted)
