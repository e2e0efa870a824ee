"""Pairs of answers with and without drafts."""

import pytest

from bench.speculation import Answer, Pair, is_exact, speculation_section


def made(text: str = "x", *, generated: int = 11, cycles: int = 5, rate: float = 100.0, drafted: int = 10) -> Answer:
    return Answer(text, generated, drafted, accepted=5, cycles=cycles, rate=rate)


def test_parity_needs_the_same_text_and_the_same_number_of_tokens() -> None:
    assert is_exact([Pair(made(), made())])
    assert not is_exact([Pair(made(), made()), Pair(made("a"), made("b"))])
    assert not is_exact([Pair(made(generated=3), made(generated=4))])


def test_ratios_are_taken_prompt_by_prompt_and_over_the_run() -> None:
    pairs = [Pair(made(rate=200), made(rate=100)), Pair(made(rate=90), made(rate=60))]
    section = speculation_section(pairs)
    assert section.figures[0].samples == (2.0, 1.5)
    # 20 tokens take 10/200 + 10/90 s with drafts, and 10/100 + 10/60 s without
    assert dict(section.facts)["ratio of the whole run"] == "1.66"


def test_tokens_per_cycle_leave_out_the_one_that_the_prefill_gives() -> None:
    figures = {figure.name: figure for figure in speculation_section([Pair(made(), made())]).figures}
    assert figures["tokens per cycle, on"].samples == (2.0,)
    assert figures["drafted per cycle, chosen by the controller"].samples == (2.0,)


def test_an_answer_without_any_cycle_is_left_out_of_the_rates_but_not_of_the_parity() -> None:
    pairs = [Pair(made(), made()), Pair(made("a", cycles=0, rate=0), made("b", cycles=0, rate=0))]
    section = speculation_section(pairs)
    assert len(section.figures[0].samples) == 1
    assert dict(section.facts)["same greedy answer with and without"] == "1 of 2"


def test_details_hold_both_texts() -> None:
    details = speculation_section([Pair(made("a"), made("b"))]).details
    assert (details[0]["on"]["text"], details[0]["off"]["text"], details[0]["same"]) == ("a", "b", False)


def test_nothing_usable_gives_no_figures_instead_of_an_error() -> None:
    section = speculation_section([Pair(made(cycles=0), made(cycles=0))])
    assert section.figures[0].samples == pytest.approx(())
