"""Answers by launches, the interpreter in the kernel's place: the tokens and the states of the decoder in torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreted_launches import OracleCycles, counted, interpreted
from oracle_drafter import AlwaysDraft
from predictions import CopiesCostNothing, predictions
from small_models import EXACT, KERNEL_LIKE, Small, load, small_model_maker
from tiny_model import write_tiny_model

from server.kernel.plan import Plan
from server.kernel.sequence import Buffers
from server.model.state import SequenceState
from server.request import SamplingParams
from server.speculation.copies import LENGTHS, Copies
from server.speculation.decoder import Decoder
from server.speculation.depth import DepthController
from server.speculation.launches import LaunchDecoder, Launches
from server.speculation.sampling import NotFiniteLogits, Sampler

PROMPT = [(7 * i * i + 3 * i) % 300 for i in range(70)]
LENGTH = 40
GREEDY = SamplingParams()
SAMPLED = (
    SamplingParams(temperature=0.9, seed=4),
    SamplingParams(temperature=1.2, top_p=0.95, seed=7, presence_penalty=0.5, repetition_penalty=1.1),
    SamplingParams(frequency_penalty=0.7),
)
"""The last is greedy behind a penalty, which the device doesn't know."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return small_model_maker(tmp_path_factory.mktemp("small"))("plain", EXACT)


@pytest.fixture(autouse=True)
def _as_the_worker() -> Iterator[None]:
    with torch.inference_mode():
        yield


def prefilled(small: Small, prompt: list[int] = PROMPT) -> SequenceState:
    state = small.reference.new_state()
    small.reference.prefill(prompt, state)
    return state


def complete(decoder: Decoder | LaunchDecoder, length: int = LENGTH, end: frozenset[int] = frozenset()) -> list[int]:
    """All tokens of an answer; the state is finished."""
    tokens = [decoder.first()]
    while len(tokens) < length and tokens[-1] not in end:
        cycle = decoder.cycle(length - len(tokens))
        assert 1 <= len(cycle.tokens) <= min(cycle.drafted + 1, length - len(tokens))
        assert len(cycle.tokens) - 1 <= cycle.accepted <= min(cycle.drafted, len(cycle.tokens))
        tokens += cycle.tokens
    decoder.finish()
    return tokens


def in_torch(
    small: Small, params: SamplingParams = GREEDY, state: SequenceState | None = None, length: int = LENGTH, **more: Any
) -> list[int]:
    """What `Decoder` answers, without drafts."""
    state = state or prefilled(small)
    sampler = Sampler(params, PROMPT, small.model.config.vocab)
    return complete(Decoder(small.reference, state, sampler, more.get("end", ())), length, **more)


def by_launches(
    launches: Launches,
    state: SequenceState,
    controller: Any = None,
    params: SamplingParams = GREEDY,
    end: frozenset[int] = frozenset(),
    old: Sequence[int] | None = None,
) -> LaunchDecoder:
    """old: a prediction, from which as much as there is is always copied."""
    sampler = Sampler(params, PROMPT, launches.model.config.vocab)
    copies = None if old is None else Copies(old, CopiesCostNothing())
    return LaunchDecoder(launches, state, sampler, end, controller, copies=copies)


def check_state(small: Small, state: SequenceState, text: list[int]) -> None:
    """It is a fresh prefill's of the prompt and all tokens but the newest, and continues as that does."""
    known = [*PROMPT, *text[:-1]]
    assert state.tokens == known
    assert state.mtp_length == (len(known) if small.model.config.mtp else 0)
    fresh = prefilled(small, known)
    pairs = [(state.memory, fresh.memory), (state.last_hidden, fresh.last_hidden)]
    pairs += zip(state.conv, fresh.conv, strict=True)
    ours, theirs = ([*s.attention, *([s.mtp] if s.mtp else [])] for s in (state, fresh))
    for a, b in zip(ours, theirs, strict=True):
        both = ((a.keys, b.keys), (a.values, b.values))
        pairs += [(x[:, : len(known)], y[:, : len(known)]) for x, y in both]
    assert all(torch.allclose(a, b, atol=1e-9, rtol=0) for a, b in pairs)
    more = [text[-1], 5, 6, 7]
    ahead = [small.reference.prefill(more, s) for s in (state, fresh)]
    assert torch.allclose(ahead[0], ahead[1], atol=1e-9, rtol=0)


@pytest.mark.parametrize("depth", range(8))
def test_greedy_text_and_state_are_those_of_the_decoder(small: Small, depth: int) -> None:
    state = prefilled(small)
    text = complete(by_launches(interpreted(small), state, AlwaysDraft(depth)))
    assert len(set(text)) > 10, "a model that repeats itself would prove nothing"
    assert text == in_torch(small)
    check_state(small, state, text)


@pytest.mark.parametrize("params", [GREEDY, *SAMPLED])
def test_text_and_state_are_the_same_for_every_accepted_count(small: Small, params: SamplingParams) -> None:
    truth, counts = in_torch(small, params, length=LENGTH + 16), set()
    for right in range(8):
        state, controller = prefilled(small), AlwaysDraft(7)
        launches = interpreted(small, kind=OracleCycles)
        cycles = launches.cycles
        assert isinstance(cycles, OracleCycles)
        decoder = by_launches(launches, state, controller, params)
        cycles.truth, cycles.right = truth, right
        cycles.done = lambda decoder=decoder: 1 + len(decoder._processed) - len(PROMPT)
        text = complete(decoder)
        assert text == truth[:LENGTH]
        counts |= set(controller.accepted[:-1])
        check_state(small, state, text)
    assert counts == set(range(8))


@pytest.mark.parametrize("params", SAMPLED)
def test_a_seed_gives_the_decoders_tokens_with_the_heads_own_drafts(small: Small, params: SamplingParams) -> None:
    state = prefilled(small)
    text = complete(by_launches(interpreted(small), state, DepthController(), params))
    assert text == in_torch(small, params)
    check_state(small, state, text)


def test_only_what_the_device_can_verify_is_left_to_it(small: Small) -> None:
    for params in (GREEDY, *SAMPLED):
        found: list[Plan] = []
        launches = interpreted(small, run=counted(small, found))
        complete(by_launches(launches, prefilled(small), AlwaysDraft(2), params), 10)
        assert {plan.logits for plan in found} == {params is not GREEDY}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED[0]])
@pytest.mark.parametrize("place", range(1, 9))
def test_nothing_follows_an_end_token(small: Small, place: int, params: SamplingParams) -> None:
    """Whether it is a draft that came true or the token behind the drafts; the tokens behind it leave no trace."""
    truth = in_torch(small, params, length=20)
    end = frozenset({truth[place]})
    state, launches = prefilled(small), interpreted(small, kind=OracleCycles)
    cycles = launches.cycles
    assert isinstance(cycles, OracleCycles)
    cycles.truth, cycles.right, cycles.done = truth, 7, lambda: 1
    decoder = by_launches(launches, state, AlwaysDraft(7), params, end)
    text = complete(decoder, end=end)
    assert text == truth[: 1 + next(i for i, token in enumerate(truth) if token in end)]
    check_state(small, state, text)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED[0]])
def test_no_token_is_made_behind_the_limit(small: Small, params: SamplingParams) -> None:
    found: list[Plan] = []
    decoder = by_launches(interpreted(small, run=counted(small, found)), prefilled(small), AlwaysDraft(7), params)
    decoder.first()
    for limit in (1, 3, 8, 20):
        decoder.cycle(limit)
    assert [plan.rows for plan in found] == [1, 3, 8, 8]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED[1]])
def test_no_prediction_changes_text_or_state_whatever_is_accepted(small: Small, params: SamplingParams) -> None:
    truth, counts = in_torch(small, params, length=64), set()
    for name, old in predictions(truth, small.model.config.vocab, 256).items():
        state, cycles = prefilled(small), []
        decoder = by_launches(interpreted(small), state, AlwaysDraft(3), params, old=old)
        cycle = decoder.cycle
        decoder.cycle = lambda limit, cycle=cycle, cycles=cycles: cycles.append(cycle(limit)) or cycles[-1]
        text = complete(decoder, len(truth))
        assert text == truth, name
        check_state(small, state, text)
        assert {cycle.drafted for cycle in cycles if cycle.copied} <= set(LENGTHS)
        if name == "right":
            assert [cycle.accepted for cycle in cycles if cycle.drafted == 15] == [15] * 3
        counts |= {cycle.accepted for cycle in cycles if cycle.copied and cycle.drafted == 15}
    assert counts == set(range(16))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED[0]])
@pytest.mark.parametrize("place", range(1, 18))
def test_nothing_follows_an_end_token_among_copied_drafts(small: Small, place: int, params: SamplingParams) -> None:
    truth = in_torch(small, params, length=30)
    end = frozenset({truth[place]})
    state = prefilled(small)
    text = complete(by_launches(interpreted(small), state, AlwaysDraft(3), params, end, truth), end=end)
    assert text == truth[: 1 + next(i for i, token in enumerate(truth) if token in end)]
    check_state(small, state, text)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED[0]])
def test_no_copied_draft_is_verified_behind_the_limit(small: Small, params: SamplingParams) -> None:
    truth, found = in_torch(small, params, length=60), list[Plan]()
    launches = interpreted(small, run=counted(small, found))
    decoder = by_launches(launches, prefilled(small), AlwaysDraft(7), params, old=truth)
    decoder.first()
    for limit in (1, 2, 5, 16, 20):
        decoder.cycle(limit)
    assert [(plan.rows, plan.drafts) for plan in found] == [(1, 0), (2, 0), (4, 0), (16, 0), (16, 0)]


def test_a_controller_that_never_drafts_switches_it_off(small: Small) -> None:
    found: list[Plan] = []
    launches = interpreted(small, run=counted(small, found))
    state = prefilled(small)
    text = complete(by_launches(launches, state, DepthController(max_depth=0)))
    assert text == in_torch(small)
    assert {(plan.rows, plan.drafts) for plan in found} == {(1, 0)}
    check_state(small, state, text)


def test_a_model_without_a_head_decodes_token_by_token(tmp_path: Path) -> None:
    small = load(write_tiny_model(tmp_path / "m.gguf", mtp_layers=0, seed=3), EXACT)
    for params in (GREEDY, SAMPLED[0]):
        state = prefilled(small)
        text = complete(by_launches(interpreted(small), state, AlwaysDraft(3), params))
        assert text == in_torch(small, params)
        check_state(small, state, text)


def test_an_answer_without_a_cycle_leaves_the_buffers_alone(small: Small) -> None:
    state, launches = prefilled(small), interpreted(small)
    text = complete(by_launches(launches, state), 1)
    assert text == in_torch(small, length=1)
    check_state(small, state, text)
    assert not launches.cycles.at["counts"].any()


def test_answers_take_turns_in_the_buffers_and_know_nothing_of_each_other(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """To the bit, with a kernel's rounding: what was set aside comes back as it was."""
    small = small_model_maker(tmp_path_factory.mktemp("small"))("plain", KERNEL_LIKE)
    prompts = [PROMPT, PROMPT[:33], PROMPT[5:60]]
    alone = []
    for prompt in prompts:
        state = prefilled(small, prompt)
        alone.append((complete(by_launches(interpreted(small), state, AlwaysDraft(3))), state))
    launches = interpreted(small)
    states = [prefilled(small, prompt) for prompt in prompts]
    decoders = [by_launches(launches, state, AlwaysDraft(3)) for state in states]
    texts = [[decoder.first()] for decoder in decoders]
    for turn in [0, 1, 1, 2, 0, *range(3)] * LENGTH:
        if len(texts[turn]) < LENGTH:
            texts[turn] += decoders[turn].cycle(LENGTH - len(texts[turn])).tokens
    for decoder in decoders:
        decoder.finish()
    for text, state, (text_alone, state_alone) in zip(texts, states, alone, strict=True):
        assert text == text_alone
        assert state.tokens == state_alone.tokens
        assert torch.equal(state.memory, state_alone.memory)
        assert all(map(torch.equal, state.conv, state_alone.conv))
        for ours, theirs in zip(state.attention, state_alone.attention, strict=True):
            assert torch.equal(ours.keys, theirs.keys)


def test_an_answer_that_was_dropped_is_not_set_aside(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = interpreted(small)
    decoder = by_launches(launches, prefilled(small))
    decoder.first()
    decoder.cycle(5)
    monkeypatch.setattr(LaunchDecoder, "step_aside", lambda self: pytest.fail("nobody wants it"))
    del decoder
    assert complete(by_launches(launches, prefilled(small))) == in_torch(small)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED[0]])
def test_logits_that_are_not_numbers_are_an_error(small: Small, params: SamplingParams) -> None:
    def run(plan: Plan, at: Buffers) -> None:
        small.interpreter.run(plan, at)
        at["best"][..., 0] = torch.nan
        at["logits"][:] = torch.nan

    decoder = by_launches(interpreted(small, run=run), prefilled(small), params=params)
    decoder.first()
    with pytest.raises(NotFiniteLogits):
        decoder.cycle(5)
