"""Matrix products with constant weights, where a row's result doesn't depend on how many rows are computed with it."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

MAX_ROWS = 16
"""Rows of a decode: up to here a row's bits are the same in every company."""

Rule = Literal["free", "pair", "padded", "apart"]
"""How to make few rows independent of each other: nothing to do; a lone row is computed twice (some routines treat
one row differently); always MAX_ROWS rows; every row by itself."""

_rules: dict[tuple[object, ...], Rule] = {}


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """True where oneDNN's packed float32 weights exist: faster on few rows than a plain matrix, and row-invariant."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def onednn_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [M, in] · weightᵀ, weight [out, in] packed or plain: [M, out]. With two rows or more a row's bits don't
    depend on M, nor on the other rows."""
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return y


class Linear:
    """y = W x. The weights are packed once where that helps; the plain matrix isn't kept."""

    def __init__(self, weight: torch.Tensor) -> None:
        """weight [out, in], on the device and in the type it shall be used."""
        self.out_features, self.in_features = weight.shape
        self.packed = can_pack(weight.device, weight.dtype)
        self.weight: torch.Tensor = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if self.packed else weight.contiguous()
        )
        key = (self.out_features, self.in_features, weight.dtype, weight.device, self.packed, torch.get_num_threads())
        if key not in _rules:
            _rules[key] = self._find_rule(weight.dtype, weight.device)
        self.rule: Rule = _rules[key]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, in] -> [M, out]. For M ≤ MAX_ROWS a row's bits are independent of M and of its place."""
        return self._product(x) if x.shape[0] > MAX_ROWS else self._by_rule(x, self.rule)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return onednn_linear(x, self.weight) if self.packed else F.linear(x, self.weight)

    def _by_rule(self, x: torch.Tensor, rule: Rule) -> torch.Tensor:
        rows = x.shape[0]
        if rule == "free" or (rule == "pair" and rows > 1):
            return self._product(x)
        if rule == "pair":
            return self._product(x.expand(2, -1))[:1]
        if rule == "padded":
            return self._product(F.pad(x, (0, 0, 0, MAX_ROWS - rows)))[:rows]
        return torch.cat([self._product(row) for row in x[:, None].unbind(0)])

    def _find_rule(self, dtype: torch.dtype, device: torch.device) -> Rule:
        """The cheapest rule under which this shape is row-invariant here: found by trying, since it depends on the
        processor and the library."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(MAX_ROWS, self.in_features, generator=generator).to(device, dtype)
        rules: tuple[Rule, ...] = ("free", "pair", "padded")
        for rule in rules:
            alone = torch.cat([self._by_rule(row, rule) for row in x[:, None].unbind(0)])
            if all(
                torch.equal(self._by_rule(x[first : first + rows], rule), alone[first : first + rows])
                for first, rows in ((0, 2), (0, 3), (1, 4), (3, 5), (2, 8), (4, 9), (1, 15), (0, 16))
            ):
                return rule
        return "apart"
