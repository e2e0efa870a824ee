"""The prefix cache on a model whose every state is known."""

import random
from itertools import pairwise

import pytest
from fake_model import FakeCheckpoint, FakeModel, FakeRows, FakeState
from prefixes import PLENTY, check_warm_is_cold, cold, same, serve

from server.cache.borders import NEAR, ON_CPU, ON_GPU, ROOM, kept_states, steps_begin
from server.cache.prefix import (
    LONG_ANSWER,
    CachedSequence,
    PrefixCache,
    prefill_step,
)
from server.cache.tree import common_length


def test_on_a_gpu_a_prompt_has_no_steps_and_an_appended_one_computes_what_is_new() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY, ON_GPU)
    ids = [n % 7 for n in range(5000)]
    assert serve(model, cache, ids)[1:] == (0, 5000)
    assert serve(model, cache, [*ids, 3, 1, 4])[2] == 3
    assert serve(model, cache, [*ids[:-2], 5])[2] <= NEAR + ROOM
    assert (model.rows_decoded, max(model.rows_prefilled)) == ([], ON_GPU.call)


@pytest.mark.parametrize("seed", range(3))
def test_a_warm_prefill_gives_the_state_of_a_cold_one(seed: int) -> None:
    check_warm_is_cold(FakeModel(), seed)


class OneOff(FakeState):
    """Planted: a checkpoint claims one token more than its state has seen."""

    def checkpoint(self, length: int | None = None) -> FakeCheckpoint:
        before = FakeState()
        for token in self.tokens[:length][:-1]:
            before.step(token)
        kept = super().checkpoint(length)
        return FakeCheckpoint(kept.tokens, before.recurrent, kept.window, kept.last_hidden, kept.way)


class ForgetsWindow(FakeState):
    """Planted: the conv window is not restored."""

    def restore(self, checkpoint: FakeCheckpoint) -> None:
        window = self.window
        super().restore(checkpoint)
        self.window = window


class ForgetsMtp(FakeState):
    """Planted: the MTP cache keeps its old rows, so new ones land behind them."""

    def restore(self, checkpoint: FakeCheckpoint) -> None:
        mtp = list(self.mtp)
        super().restore(checkpoint)
        self.mtp = mtp[: len(self.tokens) - 1] + mtp[len(self.tokens) : len(self.tokens) + 1]


@pytest.mark.parametrize("fault", [OneOff, ForgetsWindow, ForgetsMtp])
def test_a_planted_checkpoint_fault_is_noticed(fault: type[FakeState]) -> None:
    model = FakeModel()
    model.new_state = fault
    with pytest.raises(AssertionError):
        check_warm_is_cold(model)


def test_a_planted_comparison_by_length_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cache.tree.common_length", lambda a, b: min(len(a), len(b)))
    with pytest.raises(AssertionError):
        check_warm_is_cold(FakeModel())


def test_a_prompt_with_a_few_new_tokens_takes_one_pass_and_keeps_all_its_states() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    text = [i % 6 for i in range(200)]
    serve(model, cache, [*text, 7], (len(text),))
    for new in (1, 2, 3, 15, 9, 11):
        text += [new % 5] * new
        assert steps_begin(len(text) + 1, (len(text),)) == 192
        model.rows_decoded, model.rows_prefilled = [], []
        state, _, prefilled = serve(model, cache, [*text, 7], (len(text),))
        assert (model.rows_decoded, model.rows_prefilled, prefilled) == ([new + 1], [], new + 1)
        assert same(state, cold(model, [*text, 7], (len(text),)))


def test_shared_tokens_are_counted_to_the_first_that_differs_in_any_kept_sequence() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    assert cache.shared([1, 2, 3]) == 0
    serve(model, cache, [1, 2, 3, 4])
    serve(model, cache, [5, 2])
    assert [cache.shared(ids) for ids in ([1, 2, 9], [5, 9], [5, 2], [1, 2, 3, 4, 5], [7])] == [2, 1, 2, 4, 0]
    assert cache.take([1, 2, 9])[1] == 0, "no state was kept between them"


def test_the_same_prompt_again_computes_nothing() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    ids = [i % 7 for i in range(300)]
    serve(model, cache, ids, answer=10)
    assert serve(model, cache, ids)[1:] == (300, 0)


def test_an_answer_is_a_prefix_too() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    ids = [i % 7 for i in range(100)]
    serve(model, cache, ids, answer=10)
    longer = ids + [t % 5 for t in range(10)] + [1, 2, 3]
    assert serve(model, cache, longer)[1:] == (110, 3)


def test_a_short_answer_is_computed_as_the_prompt_it_became_and_a_long_one_is_taken_as_it_is() -> None:
    model = FakeModel()
    ids = [i % 7 for i in range(100)]
    for answer, reused in ((40, 64), (LONG_ANSWER - 30, 100 + LONG_ANSWER - 30)):
        cache = PrefixCache(model.new_state, PLENTY)
        serve(model, cache, ids, answer=answer)
        longer = ids + [t % 5 for t in range(answer)] + [1, 2, 3]
        state, *counts = serve(model, cache, longer)
        assert counts == [reused, len(longer) - reused]
        assert (state.way == cold(model, longer).way) == (answer == 40)
        other = [*longer[:-1], 6]
        state, reused, _ = serve(model, cache, other)
        assert same(state, cold(model, other)), "what nobody would compute so is not reused for another prompt"
        assert reused == (128 if answer == 40 else 64)


@pytest.mark.parametrize("changed", range(1, 5))
def test_u34_typing_prefills_a_few_tokens_only(changed: int) -> None:
    """The last tokens before the cursor change while a word is typed; a marker follows the cursor."""
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    rng = random.Random(changed)
    text = [rng.randrange(6) for _ in range(1900)]
    serve(model, cache, [*text, 7], (len(text),), answer=20)
    for _ in range(80):
        before = steps_begin(len(text) + 1, (len(text),))
        text = text[:-changed] + [rng.randrange(6) for _ in range(changed + 1)]
        _, reused, prefilled = serve(model, cache, [*text, 7], (len(text),), answer=20)
        assert reused + prefilled == len(text) + 1
        moved = steps_begin(len(text) + 1, (len(text),)) - before
        assert prefilled <= (moved or NEAR) + ROOM + 2


def test_two_documents_are_kept_side_by_side() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    shared = [i % 6 for i in range(600)]
    first = [*shared, 1, *([3] * 700)]
    second = [*shared, 2, *([4] * 700)]
    serve(model, cache, first)
    assert serve(model, cache, second)[1] == ON_CPU.spacing
    for _ in range(3):
        assert serve(model, cache, first)[1:] == (len(first), 0)
        assert serve(model, cache, second)[1:] == (len(second), 0)
    assert len(cache) == 2


def check_canaries(conversations: int) -> int:
    """Conversations in an equal frame, each with a token that no other has, four at a time -> tokens reused."""
    model, rng = FakeModel(), random.Random(2)
    cache = PrefixCache(model.new_state, 60_000)
    frame = [rng.randrange(8) for _ in range(70)]
    talks = [[*frame[:at], 100 + n, *frame[at:]] for n in range(conversations) for at in (rng.randrange(70),)]
    total, waiting = 0, list(range(conversations)) * 2
    rng.shuffle(waiting)
    while waiting:
        chosen = {waiting.pop() for _ in range(4) if waiting}
        taken = []
        for n in chosen:
            kept = {tuple(t for node in end.path() for t in node.tokens) for end in cache.tree.nodes()}
            assert cache.shared(talks[n]) == max((common_length(k, tuple(talks[n])) for k in kept), default=0)
            sequence, reused = cache.take(talks[n])
            assert sequence.state.tokens == talks[n][:reused]
            taken.append((n, sequence))
            total += reused
        going = True
        while going:
            going = any([prefill_step(model, sequence, talks[n], ()) for n, sequence in taken])
        for n, sequence in taken:
            fresh = model.new_state()
            for token in talks[n]:
                fresh.step(token)
            assert (sequence.state.tokens, sequence.state.recurrent) == (talks[n], fresh.recurrent)
            cache.give_back(sequence)
            talks[n] = [*talks[n], rng.randrange(8)]
        assert cache.nbytes <= cache.budget
    return total


def test_u36_a_thousand_conversations_leak_nothing_into_each_other() -> None:
    """And what is said to be held of a prompt is held: up to the first token that differs in every kept sequence."""
    assert check_canaries(1000) > 5000


def test_planted_comparison_of_the_frame_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(first: tuple[int, ...], second: tuple[int, ...]) -> int:
        def seen(ids: tuple[int, ...]) -> list[int]:
            return [min(token, 8) for token in ids]

        return common_length(seen(first), seen(second))

    monkeypatch.setattr("server.cache.tree.common_length", blind)
    with pytest.raises(AssertionError):
        check_canaries(200)


def test_an_edit_that_is_undone_computes_nothing() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    ids = [i % 6 for i in range(600)]
    serve(model, cache, ids)
    serve(model, cache, [*ids[:560], 7])
    assert serve(model, cache, ids)[1:] == (600, 0)
    assert len(cache) == 2


def check_sharing(model: FakeModel) -> None:
    """Texts that part at a token hold what is before it once, but for less than a page."""
    cache = PrefixCache(model.new_state, PLENTY)
    shared = [i % 6 for i in range(600)]
    texts = [[*shared, n, *[n] * 700] for n in range(2, 6)]
    for ids in texts:
        serve(model, cache, ids)
    held = sum(node.rows.nbytes for node in cache.tree.nodes())
    assert held == 8 * (576 + sum(len(ids) - 576 for ids in texts))
    for ids in texts:
        assert same(serve(model, cache, ids)[0], cold(model, ids))


def test_what_sequences_have_in_common_is_held_once() -> None:
    check_sharing(FakeModel())


def test_planted_sharing_of_whole_pieces_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cache.tree.PAGE", 10**6)
    with pytest.raises(AssertionError):
        check_sharing(FakeModel())


def test_a_prompt_goes_on_from_the_longest_beginning_whichever_request_left_it() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    trunk = [i % 6 for i in range(700)]
    serve(model, cache, [*trunk[:640], *[7] * 500])  # keeps 512 and 640, where it was asked to
    serve(model, cache, [*trunk, *[6] * 300], (640,))
    serve(model, cache, [*trunk[:400], *[5] * 300])
    assert serve(model, cache, [*trunk, *[4] * 300])[1] == 640
    assert cache.shared([*trunk, 3]) == 700


def check_going_on_from_what_is_left(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state stays as the next request's: only the pieces it lacks are copied there."""
    cache = PrefixCache(model.new_state, PLENTY)
    rng = random.Random(8)
    texts = [[n, *(rng.randrange(8) for _ in range(400))] for n in range(3)]
    for turn in range(60):
        ids = texts[turn % 3] = texts[turn % 3][: -rng.randrange(1, 9)] + [rng.randrange(8) for _ in range(9)]
        assert same(serve(model, cache, ids, answer=turn % 5)[0], cold(model, ids))
    copied = []
    adopt = FakeState.adopt

    def counts(self: FakeState, checkpoint: FakeCheckpoint, parts: list[FakeRows]) -> None:
        copied.append(len(parts))
        adopt(self, checkpoint, parts)

    monkeypatch.setattr(FakeState, "adopt", counts)
    for _ in range(3):
        ids = [*ids, 1]
        serve(model, cache, ids, (len(ids) - 1,))
    assert copied == [0, 0, 0], "nothing is copied while a text is typed"


def test_a_state_goes_on_from_what_it_was_left_with(monkeypatch: pytest.MonkeyPatch) -> None:
    check_going_on_from_what_is_left(FakeModel(), monkeypatch)


def test_planted_rows_of_another_text_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cache.prefix._Spare.held", lambda self, path: min(len(self.rows), len(path)))
    with pytest.raises(AssertionError):
        check_going_on_from_what_is_left(FakeModel(), monkeypatch)


def test_what_is_kept_stays_within_the_budget_and_the_old_goes_first() -> None:
    model = FakeModel()
    budget = 60_000
    cache = PrefixCache(model.new_state, budget)
    rng = random.Random(1)
    prompts = [[document] + [rng.randrange(8) for _ in range(1200)] for document in range(12)]
    for ids in prompts:
        serve(model, cache, ids)
        assert cache.nbytes <= budget
    assert 1 < len(cache) < len(prompts)
    assert serve(model, cache, prompts[-1])[1] == len(prompts[-1])
    assert serve(model, cache, prompts[0])[1] == 0


def test_a_document_outlasts_long_typing_in_another() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, 50_000)
    rng = random.Random(4)
    other = [7, *(rng.randrange(8) for _ in range(900))]
    typed = [6, *(rng.randrange(8) for _ in range(900))]
    serve(model, cache, other)
    for _ in range(150):
        typed = [*typed, rng.randrange(8)]
        serve(model, cache, typed, (len(typed) - 1,))
    assert serve(model, cache, other)[1] >= ON_CPU.spacing


def test_no_budget_keeps_nothing_and_serves() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, 0)
    ids = [1, 2, 3]
    assert serve(model, cache, ids)[1:] == (0, 3)
    assert serve(model, cache, ids)[1:] == (0, 3)
    assert len(cache) == 0


def test_checkpoints_stand_at_the_borders() -> None:
    model = FakeModel()
    sequence = CachedSequence(model.new_state())
    ids = [i % 6 for i in range(1500)]
    while prefill_step(model, sequence, ids, (700, 1490)):
        pass
    assert [s.length for s in sequence.states] == sorted(kept_states(1500, (700, 1490)))


def check_states_of_a_long_prompt(budget: int) -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, budget)
    ids = [i % 6 for i in range(5000)]
    sequence, _ = cache.take(ids)
    while prefill_step(model, sequence, ids, ()):
        assert sum(state.checkpoint.nbytes for state in sequence.states) <= max(budget / 2, 4000)
    ends = [state.length for state in sequence.states]
    assert set(ends) <= kept_states(len(ids), ())
    assert ends[-3:] == sorted(kept_states(len(ids), ()))[-3:], "where typing goes on"
    gaps = [b - a for a, b in pairwise([0, *ends[:-3]])]
    assert max(gaps) <= 4 * 5000 / (budget / 2000), f"spread over the whole prompt: {gaps}"


def test_states_of_a_long_prompt_stay_within_half_of_the_budget_while_it_runs() -> None:
    for budget in (16_000, 10_000):
        check_states_of_a_long_prompt(budget)


def test_planted_states_that_all_stay_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cache.prefix.NEWEST", 10**6)
    with pytest.raises(AssertionError):
        check_states_of_a_long_prompt(10_000)


def test_two_requests_that_begin_alike_go_on_apart() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    ids = [i % 6 for i in range(300)]
    serve(model, cache, ids)
    texts = [[*ids, n, *[n] * 90] for n in (6, 7)]
    taken = [cache.take(text) for text in texts]
    assert [reused for _, reused in taken] == [256, 256]
    left = [True, True]
    while any(left):
        for n, (sequence, _) in enumerate(taken):
            left[n] = prefill_step(model, sequence, texts[n], ()) > 0
    for text, (sequence, _) in zip(texts, taken, strict=True):
        assert same(sequence.state, cold(model, text))
        cache.give_back(sequence)
    for text in texts:
        assert same(serve(model, cache, text)[0], cold(model, text))


def test_what_is_dropped_while_a_request_goes_on_from_it_comes_back_with_it() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    ids = [i % 6 for i in range(600)]
    serve(model, cache, ids)
    sequence, reused = cache.take([*ids, 1])
    cache.clear()
    while prefill_step(model, sequence, [*ids, 1], ()):
        pass
    cache.give_back(sequence)
    assert reused > 500
    assert serve(model, cache, [*ids, 1])[1:] == (601, 0)


def test_rows_that_nobody_verified_are_refused() -> None:
    model = FakeModel()
    cache = PrefixCache(model.new_state, PLENTY)
    sequence, _ = cache.take([1, 2, 3])
    model.prefill([1, 2, 3], sequence.state)
    sequence.state.truncate_mtp(2)  # planted: the MTP row of a token is missing
    with pytest.raises(AssertionError):
        cache.give_back(sequence)
    assert len(cache) == 0


def test_common_length() -> None:
    assert common_length([], [1]) == 0
    assert common_length([1, 2], [1, 2, 3]) == 2
    assert common_length([1, 2, 4], [1, 2, 3]) == 2
