"""A row's bits depend on the tokens before it: not on the rows decoded with it, nor on the number of threads."""

from collections.abc import Iterator

import pytest
import torch
from state_checks import ModelMaker, decode_in, differences, tokens
from torch.nn import functional as F

from server.model import activations, attention, delta_net
from server.model.hybrid import HybridModel
from server.model.linear import MAX_ROWS, Linear, can_halve

CUTS = [(rows,) for rows in range(2, MAX_ROWS + 1)] + [(1, 5, 2, 16, 3)]


def skip_unless_possible(variant: str) -> None:
    if variant == "half" and not can_halve("cpu", torch.float32):
        pytest.skip("no float16 weights on this processor")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def rows_that_differ(model: HybridModel, start: int, cuts: list[tuple[int, ...]]) -> list[object]:
    """The ways of cutting a decode that change a bit of the hiddens, the logits or the state."""
    ids = tokens(start + 33, model.config.vocab)
    one_by_one = model.new_state()
    model.prefill(ids[:start], one_by_one)
    checkpoint = one_by_one.checkpoint()
    expected = decode_in(model, one_by_one, ids[start:], (1,))
    logits = torch.cat([model.logits(row) for row in expected[:, None].unbind(0)])
    state = model.new_state()
    model.prefill(ids[:start], state)
    found: list[object] = []
    for sizes in cuts:
        state.restore(checkpoint)
        hidden = decode_in(model, state, ids[start:], sizes)
        same_logits = torch.equal(torch.cat([model.logits(part) for part in hidden.split(sizes[0])]), logits)
        if not torch.equal(hidden, expected) or differences(state, one_by_one) or not same_logits:
            found.append(sizes)
    return found


@pytest.mark.parametrize("variant", ["float32", "float64", "half"])
@pytest.mark.parametrize("shape", ["default", "odd", "wide"])
@pytest.mark.parametrize("start", [0, 67, 240])
def test_rows_are_the_same_however_a_decode_is_cut(
    make_model: ModelMaker, shape: str, variant: str, start: int
) -> None:
    """From the beginning, inside a chunk, and across a border of key blocks."""
    skip_unless_possible(variant)
    cuts = CUTS if start == 240 else [(2,), (5,), (16,)]
    assert rows_that_differ(make_model(shape, variant), start, cuts) == []


def test_the_check_notices_sigmoids_whose_vectors_differ_from_their_remainder(
    make_model: ModelMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta_net, "silu", F.silu)
    monkeypatch.setattr(attention, "sigmoid", torch.sigmoid)
    assert rows_that_differ(make_model("odd", "float32"), 67, CUTS) != []


def test_the_check_notices_products_that_depend_on_the_row_count(
    make_model: ModelMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Linear, "__call__", lambda self, x: self._product(x))
    assert rows_that_differ(make_model("default", "float64"), 67, CUTS) != []


@pytest.mark.parametrize("variant", ["float32", "half"])
def test_threads_change_no_bit(make_model: ModelMaker, variant: str, threads: None) -> None:
    skip_unless_possible(variant)
    model = make_model("wide", variant)
    ids = tokens(600, model.config.vocab)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        state = model.new_state()
        hidden = torch.cat((model.prefill(ids[:590], state), decode_in(model, state, ids[590:], (10,))))
        results.append((hidden, state))
    for hidden, state in results[1:]:
        assert torch.equal(hidden, results[0][0])
        assert differences(state, results[0][1]) == []


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("out", "into"), [(64, 96), (96, 1100), (40, 56), (512, 2048)])
@torch.inference_mode()
def test_a_linear_map_is_the_product_and_its_rows_are_independent(out: int, into: int, half: bool) -> None:
    skip_unless_possible("half" if half else "float32")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out, into, generator=generator) / into**0.5
    x = torch.randn(40, into, generator=generator)
    linear = Linear(weight, half)
    kept = weight.half().float() if half else weight
    assert (linear(x) - x @ kept.t()).abs().max() < 1e-5
    alone = torch.cat([linear(row) for row in x[:, None].unbind(0)])
    for rows in range(1, MAX_ROWS + 1):
        for first in (0, 3, 17):
            assert torch.equal(linear(x[first : first + rows]), alone[first : first + rows])


@torch.inference_mode()
def test_activations_are_right_and_finite_at_the_ends() -> None:
    x = torch.tensor([[-200.0, -90.0, -3.0, -0.0, 0.0, 1e-4, 3.0, 90.0, 200.0]])
    assert torch.allclose(activations.silu(x), F.silu(x.double()).float(), rtol=3e-7, atol=1e-30)
    assert torch.allclose(activations.sigmoid(x), torch.sigmoid(x.double()).float(), rtol=3e-7, atol=1e-30)
