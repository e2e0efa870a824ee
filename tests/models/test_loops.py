"""What counts as a loop, the loss against it, and the pool of the model's own loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.loops import CONTINUATION, EVERY, OwnLoops, looping_share, repeated, unlikelihood
from models.spans import repeats

END = 999


def marked(tokens: list[int]) -> list[int]:
    """Where ``repeated`` marks."""
    return np.flatnonzero(repeated(np.array([tokens]), END)[0]).tolist()


def test_text_without_a_loop_has_no_marks() -> None:
    assert marked(list(range(64))) == []


def test_a_loop_is_marked_from_its_second_time_on() -> None:
    piece = list(range(10, 22))
    assert marked([1, 2, 3, *piece, *piece, *piece]) == list(range(15, 39))


def test_a_piece_that_stands_twice_is_not_a_loop() -> None:
    piece = list(range(10, 22))
    assert marked([*piece, *piece, 1, 2, 3, *piece[:7]]) == []


def test_what_follows_a_loop_or_interrupts_it_is_not_marked() -> None:
    piece = list(range(10, 18))
    assert marked([*piece, 1, *piece, 2, *piece, 3, 4]) == [*range(9, 17), *range(18, 26)]


def test_a_loop_of_period_three_is_marked_from_its_second_time_on() -> None:
    # Eight tokens three times, three apart, take 14 tokens.
    assert marked(([1, 2, 3] * 5)[:13]) == []
    assert marked(([1, 2, 3] * 5)[:14]) == list(range(3, 14))
    assert marked([7, 8, *[1, 2, 3] * 6]) == list(range(5, 20))


def test_alternating_pieces_are_one_loop() -> None:
    a, b = list(range(10, 15)), list(range(20, 25))
    assert marked([*a, *b, *a, *b, *a, *b]) == list(range(10, 30))


def test_a_loop_stops_where_the_document_ends() -> None:
    piece = list(range(10, 22))
    assert marked([*piece, END, *piece, *piece, *piece]) == []
    assert marked([*piece, *piece, *piece, END, *piece]) == list(range(12, 36))
    assert marked([*piece, *piece, END, *piece]) == []


def test_rows_of_a_batch_count_for_themselves() -> None:
    loop = [1, 2, 3] * 10
    rows = np.array([list(range(30)), loop, list(range(30, 60))])
    mask = repeated(rows, END)
    assert mask.any(1).tolist() == [False, True, False]
    assert np.flatnonzero(mask[1]).tolist() == marked(loop)


def test_a_row_has_marks_just_when_it_repeats() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 2, (400, 48))
    found = repeated(rows, END).any(1).tolist()
    expected = [repeats(row) for row in rows.tolist()]
    assert found == expected
    assert 40 < sum(expected) < 360


def test_the_share_counts_the_first_64_tokens() -> None:
    ids = torch.arange(128).repeat(4, 1)
    ids[0, :16] = 5
    ids[1, 48:64] = 5
    ids[2, 64:] = 5
    assert looping_share(ids) == 0.5


def random_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 5, 8, generator=generator)
    embedding = torch.randn(16, 8, generator=generator)
    targets = torch.randint(0, 16, (2, 5), generator=generator)
    targets[0, 1] = (hidden[0, 1] @ embedding.T).argmax()
    mask = torch.tensor([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]).bool()
    return hidden, embedding, targets, mask


def test_the_loss_is_the_mean_of_the_masked_tokens_unlikelihoods() -> None:
    hidden, embedding, targets, mask = random_case()
    p = torch.softmax(hidden.double() @ embedding.double().T, -1).gather(-1, targets[..., None])[..., 0]
    expected = -torch.log1p(-p)[mask].mean()
    assert float(unlikelihood(hidden, embedding, targets, mask)) == pytest.approx(float(expected), rel=1e-5)
    assert float(expected) > 0.1


def test_a_step_down_the_gradient_makes_masked_tokens_less_likely_and_leaves_the_others() -> None:
    hidden, embedding, targets, mask = random_case()
    hidden.requires_grad_()
    torch.autograd.backward(unlikelihood(hidden, embedding, targets, mask))
    assert hidden.grad is not None
    assert hidden.grad[~mask].abs().sum() == 0

    def probability(at: torch.Tensor) -> torch.Tensor:
        return torch.softmax(at @ embedding.T, -1).gather(-1, targets[..., None])[..., 0]

    fall = probability(hidden.detach()) - probability(hidden.detach() - 0.01 * hidden.grad)
    assert (fall[mask] > 0).all()


def test_a_token_that_is_certain_is_still_pushed() -> None:
    # 1 - p is 4e-18 here: in float32 p is 1.
    hidden = torch.tensor([[[40.0, 0.0]]], requires_grad=True)
    loss = unlikelihood(hidden, torch.eye(2), torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1).bool())
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx(40.0)
    assert hidden.grad is not None
    assert hidden.grad[0, 0, 0] == pytest.approx(1.0)


def test_continuations_without_loops_cost_nothing() -> None:
    hidden, embedding, targets, mask = random_case()
    assert float(unlikelihood(hidden, embedding, targets, mask & False)) == 0


class Stub:
    """Continues every prompt by counting up from its last token; each ``loops``-th one repeats that token instead."""

    def __init__(self, loops: int) -> None:
        self.loops = loops
        self.asked: list[torch.Tensor] = []

    def __call__(self, prompts: torch.Tensor) -> torch.Tensor:
        self.asked.append(prompts)
        ids = prompts[:, -1:] + 1 + torch.arange(CONTINUATION)
        if self.loops:
            ids[:: self.loops] = prompts[:: self.loops, -1:]
        return ids


def windows(step: int) -> NDArray[np.int16]:
    """Four windows of 201 tokens, each its own numbers in order; the tokens tell the step and the place."""
    first = 4000 + 1000 * step + 201 * np.arange(4)
    return (first[:, None] + np.arange(201)).astype(np.int16)


def test_prompts_are_slices_of_the_windows_seen_since_the_last_round() -> None:
    stub = Stub(4)
    loops = OwnLoops(stub, 32, 128, END, seed=1)
    for step in range(EVERY + 1):
        loops.see(windows(step))
        assert len(stub.asked) == (2 if step == EVERY else 1)
    first, second = (asked.numpy() for asked in stub.asked)
    for prompts in (first, second):
        assert prompts.shape == (32, 128)
        assert (np.diff(prompts) == 1).all()
        assert len({int(row[0]) for row in prompts}) > 20
    assert {int(row[0] - 4000) // 1000 for row in first} == {0}
    steps = {int(row[0] - 4000) // 1000 for row in second}
    assert steps <= set(range(1, EVERY + 1))
    assert len(steps) > 8


def test_the_pool_is_the_last_rounds_loops_each_taken_before_any_comes_twice() -> None:
    stub = Stub(4)
    loops = OwnLoops(stub, 32, 128, END, seed=1)
    assert loops.take(4) is None
    loops.see(windows(0))
    assert loops.share == 0.25
    taken = loops.take(8)
    assert taken is not None
    ids, mask = taken
    assert ids.shape == (8, 128 + CONTINUATION)
    assert mask.shape == (8, CONTINUATION)
    assert {tuple(row) for row in ids[:, :128].tolist()} == {tuple(row) for row in stub.asked[0][::4].tolist()}
    assert (ids[:, 128:] == ids[:, 127:128]).all()
    assert (~mask[:, 0]).all()
    assert mask[:, 1:].all()
    more = loops.take(20)
    assert more is not None
    counts = more[0].unique(dim=0, return_counts=True)[1]
    assert sorted(counts.tolist()) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_a_round_without_loops_leaves_nothing_to_take() -> None:
    stub = Stub(2)
    loops = OwnLoops(stub, 8, 128, END, seed=1)
    loops.see(windows(0))
    stub.loops = 0
    for step in range(1, EVERY):
        loops.see(windows(step))
    assert loops.take(2) is not None
    loops.see(windows(EVERY))
    assert loops.share == 0
    assert loops.take(2) is None
