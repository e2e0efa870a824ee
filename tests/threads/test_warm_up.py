"""What the first passes decide: which thread counts may be used, and the first prefill rate."""

import time

import pytest
import torch
from fake_model import FakeModel

from server.model.finite import NotNumbers
from server.threads import warm_up as module
from server.threads.warm_up import warm_up


@pytest.fixture(autouse=True)
def threads_as_before() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Countable(FakeModel):
    """Its hiddens may depend on the number of threads."""

    def __init__(self, depends: bool) -> None:
        super().__init__(vocabulary=300)
        self.depends = depends

    def new_state(self) -> object:
        state = super().new_state()
        state.memory = torch.zeros(1)
        return state

    def prefill(self, ids: list[int], state: object) -> torch.Tensor:
        return super().prefill(ids, state) + (torch.get_num_threads() if self.depends else 0)


def spend(seconds: float) -> None:
    """Processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_counts_with_the_same_bits_are_a_choice() -> None:
    measured = warm_up(Countable(depends=False), 2, lambda: 2)
    assert measured.prefill._counts == measured.decode._counts == [1, 2]
    assert measured.prefill_rate > 0


def test_counts_with_other_bits_are_none() -> None:
    measured = warm_up(Countable(depends=True), 2, lambda: 2)
    assert measured.prefill._counts == measured.decode._counts == [2]


def test_a_slow_model_starts_without_further_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.01)
    model = Countable(depends=False)
    prefill = model.prefill
    model.prefill = lambda ids, state: (spend(0.02), prefill(ids, state))[1]
    measured = warm_up(model, 2, lambda: 2)
    assert sum(model.rows_prefilled) == module.FIRST
    assert 0 < measured.prefill_rate < 800


def test_processors_that_others_use_are_not_tried() -> None:
    model = Countable(depends=False)
    used = set()
    prefill = model.prefill
    model.prefill = lambda ids, state: (used.add(torch.get_num_threads()), prefill(ids, state))[1]
    measured = warm_up(model, 4, lambda: 1)
    assert used == {1}
    assert measured.prefill._counts == measured.decode._counts == [1]
    assert not measured.complete
    assert warm_up(model, 4, lambda: 4).complete


def test_a_busy_machine_does_not_lower_the_rate() -> None:
    """Others run while this thread waits: a prefill's time is longer than its own processor time."""
    model = Countable(depends=False)
    prefill = model.prefill
    model.prefill = lambda ids, state: (spend(0.005), time.sleep(0.1), prefill(ids, state))[-1]
    rate = warm_up(model, 1, lambda: 1).prefill_rate
    assert module.TOKENS / 0.1 < rate <= module.TOKENS / 0.005


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("spoilt", ["prefill", "logits"])
def test_a_model_that_computes_no_numbers_is_refused(monkeypatch: pytest.MonkeyPatch, spoilt: str, slow: bool) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.0 if slow else 100.0)
    model = Countable(depends=False)
    inner = getattr(model, spoilt)
    row = model.logits(torch.ones(1, 3))
    monkeypatch.setattr(model, "logits", lambda hidden: row * hidden.sum())
    monkeypatch.setattr(model, spoilt, lambda *given: inner(*given) * float("nan"))
    with pytest.raises(NotNumbers):
        warm_up(model, 2, lambda: 2)
