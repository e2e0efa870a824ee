"""Goodness of fit, for tests of sampling."""

from collections import Counter
from collections.abc import Hashable, Mapping

import torch


def g_test(observed: Counter, expected: Mapping[Hashable, float]) -> float:
    """The p-value of the G-test that ``observed`` counts come from the ``expected`` probabilities.

    Outcomes expected fewer than 5 times are taken together; an outcome that can't happen gives 0.
    """
    total = sum(observed.values())
    if any(expected.get(outcome, 0.0) <= 0.0 for outcome in observed):
        return 0.0
    cells: list[tuple[float, float]] = []
    rest_observed, rest_expected = 0.0, 0.0
    for outcome, probability in expected.items():
        if probability * total >= 5:
            cells.append((float(observed[outcome]), probability * total))
        else:
            rest_observed += observed[outcome]
            rest_expected += probability * total
    if rest_expected >= 5:
        cells.append((rest_observed, rest_expected))
    g = 2 * sum(o * float(torch.log(torch.tensor(o / e))) for o, e in cells if o > 0)
    freedom = len(cells) - 1
    a, x = torch.tensor([freedom / 2, g / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(a, x))
