"""The prefill rate that clients are told."""

from __future__ import annotations

import pytest

from server.serving.answer import WRONG_BY, PrefillRate


def test_what_is_stated_stays_while_measurements_come_and_go() -> None:
    rate = PrefillRate(600.0)
    for measured in (700.0, 450.0, 580.0, 800.0):
        rate.add(256, 256 / measured)
        assert rate.stated == 600.0
    assert rate.value != 600.0


@pytest.mark.parametrize("measured", [600.0 * WRONG_BY * 1.1, 600.0 / WRONG_BY / 1.1])
def test_a_rate_that_is_wrong_by_far_is_stated_anew(measured: float) -> None:
    rate = PrefillRate(600.0)
    rate.add(256, 256 / measured)
    assert rate.stated == pytest.approx(measured)
