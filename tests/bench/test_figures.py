"""Medians, spreads and targets of the benchmarks."""

import pytest

from bench.figures import Figure, Section, Target, percentile


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        ([7.0], 0.9, 7.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 2.0, 3.0], 0.5, 2.5),
        ([float(i) for i in range(11)], 0.1, 1.0),
        ([float(i) for i in range(11)], 0.9, 9.0),
        ([5.0, 1.0], 0.0, 1.0),
        ([5.0, 1.0], 1.0, 5.0),
        ([0.0, 10.0], 0.25, 2.5),
    ],
)
def test_percentile_interpolates_between_neighbours(samples: list[float], share: float, expected: float) -> None:
    assert percentile(samples, share) == pytest.approx(expected)


@pytest.mark.parametrize(("samples", "share"), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_percentile_refuses_what_has_none(samples: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"nothing|between 0 and 1"):
        percentile(samples, share)


def test_a_target_is_met_on_its_side_of_the_value_and_by_the_value_itself() -> None:
    assert [Target("≤", 4).met(value) for value in (3.9, 4, 4.1)] == [True, True, False]
    assert [Target("≥", 4).met(value) for value in (3.9, 4, 4.1)] == [False, True, True]


def test_a_figure_is_judged_by_its_median_not_by_an_outlier() -> None:
    assert Figure("", "ms", (1, 2, 900), Target("≤", 3)).met is True
    assert Figure("", "ms", (1, 900, 900), Target("≤", 3)).met is False


def test_without_target_or_samples_nothing_is_met_or_missed() -> None:
    assert Figure("", "ms", (1,)).met is None
    assert Figure("", "ms", (), Target("≤", 3)).met is None


def test_json_holds_every_sample_and_the_verdict() -> None:
    section = Section("s", [Figure("f", "ms", (1, 2, 3), Target("≤", 1)), Figure("none", "ms", ())], [("a", "b")])
    figures = section.to_json()["figures"]
    assert figures[0]["samples"] == [1, 2, 3]
    assert figures[0]["median"] == 2
    assert figures[0]["met"] is False
    assert figures[1]["runs"] == 0
    assert section.to_json()["facts"] == {"a": "b"}
