"""Whether what a model computes is numbers at all: weights that are all finite may still be nonsense."""

from __future__ import annotations

import torch
from torch import Tensor


class NotNumbers(ArithmeticError):  # noqa: N818
    """What the model computes is not numbers, so no answer will be text."""


def check_numbers(*results: Tensor) -> None:
    """Raises NotNumbers."""
    for result in results:
        if not torch.isfinite(result).all():
            raise NotNumbers
