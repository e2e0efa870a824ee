"""Which launches are timed, from which place, and how they look."""

from collections.abc import Callable

import pytest
import torch
from interpreted_kernel import InterpretedKernel

from bench.kernel.bars import are_set_for, bars_section
from bench.kernel.launches import WARM_UPS, Case, Timing, cases, launch_table, measure
from server.kernel.model import preset_model
from server.kernel.stand_in import fill
from server.synth.mixes import find_mix
from server.synth.presets import PRESETS


def instant(start: Callable[[], None]) -> float:
    start()
    return 2.0


def timing(rows: int, drafts: int, context: int, ms: float) -> Timing:
    return Timing(Case(rows, drafts, context), (ms * 0.99, ms, ms * 1.01), 16_000_000_000, 17_000_000_000)


def test_cases_are_rows_and_then_cycles_by_context() -> None:
    found = cases([1, 5], [4], [4096, 0])
    assert found == [
        Case(1, 0, 0), Case(5, 0, 0), Case(5, 4, 0), Case(1, 0, 4096), Case(5, 0, 4096), Case(5, 4, 4096),
    ]  # fmt: skip


def test_every_launch_begins_at_the_same_place_with_all_rows_kept_before(kernel: InterpretedKernel) -> None:
    found = list(measure(kernel, cases([1, 3], [2], [0, 40]), instant, 2))
    each = WARM_UPS + 2
    wanted = [
        *[(1, 0, [0, 0, 1, 0])] * each,
        *[(3, 0, [0, 0, 1, 1])] * each,
        *[(3, 2, [0, 0, 1, 0])] * each,
        *[(1, 0, [40, 1, 1, 0])] * each,
        *[(3, 0, [40, 3, 3, 1])] * each,
        *[(3, 2, [40, 3, 3, 0])] * each,
    ]
    assert kernel.found == wanted
    assert [one.milliseconds for one in found] == [(2.0, 2.0)] * 6


def test_bytes_are_the_files_and_drafts_have_their_own(kernel: InterpretedKernel) -> None:
    plain, drafted, later = measure(kernel, [Case(3, 0, 0), Case(3, 2, 0), Case(3, 0, 40)], instant, 1)
    assert plain.weights < drafted.weights
    assert plain.weights == later.weights
    assert plain.memory < later.memory
    assert plain.share(plain.weights / 0.002 * 4) == pytest.approx(0.25)


def test_nothing_that_a_launch_reads_is_zero(kernel: InterpretedKernel) -> None:
    at = kernel.new_buffers(64)
    fill(at, kernel.model.config.vocab)
    for name, x in at.items():
        if name.startswith("blk.") or name == "hidden":
            assert float((x == 0).float().mean()) < 0.01, name
            assert bool(x.isfinite().all()), name
    assert int(at["accepted"].max()) < kernel.model.config.vocab
    assert int(at["given"].max()) < kernel.model.config.vocab
    assert len(torch.unique(at["given"])) > 8


def test_the_table_has_a_column_for_each_context() -> None:
    lines = launch_table([timing(1, 0, 0, 4.0), timing(5, 4, 0, 5.0), timing(1, 0, 4096, 4.2)], 4.6e12)
    assert lines[0].split() == ["context", "0", "context", "4096"]
    assert lines[1].split() == ["T=1", "n=0", "4.000", "[3.968", "4.032]", "87%", "4.200", "[4.166", "4.234]", "83%"]
    assert lines[2].split()[-1] == "-", "what wasn't measured is empty"


def measured() -> list[Timing]:
    return [timing(1, 0, 4096, 4.0), timing(5, 0, 4096, 4.2), timing(5, 4, 4096, 6.0), timing(1, 0, 100_000, 7.0)]


def test_bars_are_met_missed_or_not_measured() -> None:
    section = bars_section(measured(), 4.6e12, apply=True)
    found = {figure.name: figure for figure in section.figures}
    assert found["T=1, context 4096"].met is True
    assert found["n=4, whole cycle, context 4096"].met is False
    assert found["T=5 over T=1"].median == pytest.approx(1.05)
    assert found["T=5 over T=1"].met is True
    assert found["T=8 over T=1"].met is None
    assert found["T=1, context 100000"].met is True
    assert found["T=1, context 4096: share of the stream"].median == pytest.approx(16 / 4.6 / 4)
    assert found["n=4 at 3.3 tokens a cycle"].median == pytest.approx(550)
    assert found["n=4 at 3.9 tokens a cycle"].median == pytest.approx(650)


def test_bars_are_for_the_27b_shape_on_an_h200() -> None:
    large, tiny = (preset_model(PRESETS[name], find_mix("q4_k_m"), 100) for name in ("27b", "tiny"))
    assert are_set_for(large, "NVIDIA H200")
    assert not are_set_for(large, "NVIDIA GeForce RTX 4090")
    assert not are_set_for(tiny, "NVIDIA H200")
    assert all(figure.target is None for figure in bars_section(measured(), 4.6e12, apply=False).figures)
    assert bars_section([], 4.6e12, apply=False).figures[0].samples == ()
