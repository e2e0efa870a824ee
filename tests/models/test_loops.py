"""Windows with loops, and the loss that makes each repetition less likely than the one before."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
import torch

from models.loops import FALL, SHORTEST, loop_loss, with_loops

END = 999


def made(seed: int, size: int = 2049) -> tuple[list[int], list[int]]:
    window = np.arange(size, dtype=np.int16) % 900
    window[::211] = END
    tokens, periods = with_loops(window, END, random.Random(seed))
    return tokens.tolist(), periods.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_a_period_says_where_the_same_token_stood_before(seed: int) -> None:
    tokens, periods = made(seed)
    assert len(tokens) == 2049
    assert len(periods) == 2048
    assert any(periods)
    for t, period in enumerate(periods):
        if period:
            assert period >= SHORTEST
            assert tokens[t + 1] == tokens[t + 1 - period]


def test_some_loops_repeat_to_the_letter_and_in_some_each_repetition_differs() -> None:
    exact = changed = 0
    for seed in range(8):
        _, periods = made(seed)
        runs = "".join("r" if period else "n" for period in periods)
        # New tokens between repeated ones, at most 12 of them: real text between two loops has 60 at least.
        changed += len(re.findall("r(?=n{1,12}r)", runs))
        exact += sum(a == b for a, b in itertools.pairwise(periods) if a)
    assert changed > 20
    assert exact > 2000


@pytest.mark.parametrize("seed", range(8))
def test_a_document_border_is_never_repeated(seed: int) -> None:
    tokens, periods = made(seed)
    assert END in tokens
    assert all(period == 0 for t, period in enumerate(periods) if tokens[t + 1] == END)


def test_most_of_a_window_is_still_real_text_or_its_repetition_in_fair_shares() -> None:
    shares = [sum(p > 0 for p in made(seed)[1]) / 2048 for seed in range(40)]
    assert 0.25 < sum(shares) / len(shares) < 0.75


def loss_of(probability: float, before: float) -> float:
    """The loss of one repeated token, of that probability, with one of ``before`` one step earlier."""
    logits = torch.log(torch.tensor([[[before, 1 - before], [probability, 1 - probability]]]))
    # With the identity as embedding the hidden states are the logits.
    periods = torch.tensor([[0, 1]])
    return float(loop_loss(logits, torch.eye(2), torch.zeros(1, 2, dtype=torch.long), periods))


def test_the_loss_is_least_where_a_repetition_is_half_as_likely() -> None:
    assert loss_of(0.4, 0.8) == pytest.approx(0.0, abs=1e-6)
    assert loss_of(0.9, 0.8) == pytest.approx(-np.log(1 - (0.9 - FALL * 0.8)), rel=1e-5)
    assert loss_of(0.9, 0.8) > loss_of(0.6, 0.8) > loss_of(0.4, 0.8)
    assert loss_of(0.1, 0.8) > loss_of(0.4, 0.8)


def test_only_the_repetition_is_pushed_not_what_it_repeats() -> None:
    hidden = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]], requires_grad=True)
    periods = torch.tensor([[0, 1]])
    torch.autograd.backward(loop_loss(hidden, torch.eye(2), torch.zeros(1, 2, dtype=torch.long), periods))
    assert hidden.grad is not None
    assert hidden.grad[0, 0].abs().sum() == 0
    assert hidden.grad[0, 1, 0] > 0


def test_a_window_without_loops_costs_nothing() -> None:
    hidden = torch.randn(1, 3, 2)
    zeros = torch.zeros(1, 3, dtype=torch.long)
    assert float(loop_loss(hidden, torch.eye(2), zeros, zeros)) == 0
