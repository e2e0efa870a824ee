"""Matrix products with constant weights, where a row's result doesn't depend on how many rows are computed with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch.nn import functional as F

ROWS_AT_ONCE = 64
"""Of a matrix that is made in pieces."""
MAX_ROWS = 16
"""Rows of a decode: up to here a row's bits are the same in every company."""

Storage = Literal["plain", "packed", "half"]
"""plain: as the weight is; packed: float32 in oneDNN's order, faster on few rows; half: rounded to float16, computed
in float32, half the memory traffic, which is what few rows cost."""

Rule = Literal["free", "pair", "padded", "apart"]
"""How to make few rows independent of each other: nothing to do; a lone row is computed twice (some routines treat
one row differently); always MAX_ROWS rows; every row by itself."""

_rules: dict[tuple[object, ...], Rule] = {}


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """True where oneDNN computes float32 products: packed weights, and row-invariance for two rows and more."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def can_halve(device: torch.device | str, dtype: torch.dtype) -> bool:
    """True where float16 weights can be stored for float32 products (x86 processors)."""
    engines = torch.backends.quantized.supported_engines
    return torch.device(device).type == "cpu" and dtype == torch.float32 and "fbgemm" in engines


def onednn_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [M, in] · weightᵀ, weight [out, in] packed or plain: [M, out]. With two rows or more a row's bits don't
    depend on M, nor on the other rows."""
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return y


def _product(weight: torch.Tensor, storage: Storage) -> Callable[[torch.Tensor], torch.Tensor]:
    """x [M, in] -> [M, out]; keeps the weight in the form of `storage` alone."""
    if storage == "packed":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return lambda x: onednn_linear(x, packed)
    if storage == "half":
        halved = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), None)
        linear = torch.ops.quantized.linear_dynamic_fp16.default
        return lambda x: linear(x, halved)
    plain = weight.contiguous()
    return lambda x: F.linear(x, plain)


class RemadeLinear:
    """y = W x, with a W that is made anew for each product, in memory that others use for theirs: where there is no
    room for all matrices at once. Its rows aren't independent of their number."""

    def __init__(
        self, rows: int, columns: int, fill: Callable[[int, torch.Tensor], None], scratch: torch.Tensor
    ) -> None:
        """fill: writes rows from a number on, a multiple of ROWS_AT_ONCE, into [n, columns]. scratch: in the type of
        the product."""
        self.out_features, self.in_features = rows, columns
        self._fill = fill
        self._scratch = scratch
        room = scratch.numel() // columns
        self._rows = rows if rows <= room else room // ROWS_AT_ONCE * ROWS_AT_ONCE

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, in] -> [M, out]."""
        parts = []
        for first in range(0, self.out_features, self._rows):
            rows = min(self._rows, self.out_features - first)
            weight = self._scratch[: rows * self.in_features].view(rows, self.in_features)
            self._fill(first, weight)
            parts.append(F.linear(x, weight))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Linear:
    """y = W x. The weights are stored once in the form that suits the device; the plain matrix isn't kept."""

    def __init__(self, weight: torch.Tensor, half: bool = False) -> None:
        """weight [out, in], on the device and in the type it shall be computed in. `half`: see `Storage`."""
        self.out_features, self.in_features = weight.shape
        packable = can_pack(weight.device, weight.dtype)
        self.storage: Storage = "half" if half else "packed" if packable else "plain"
        self._product = _product(weight, self.storage)
        shape = (self.out_features, self.in_features, weight.dtype, weight.device)
        key = (*shape, self.storage, torch.get_num_threads())
        if key not in _rules:
            _rules[key] = self._find_rule(weight.dtype, weight.device)
        self.rule: Rule = _rules[key]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, in] -> [M, out]. For M ≤ MAX_ROWS a row's bits are independent of M and of its place."""
        if self.rule == "free" or x.shape[0] > MAX_ROWS:
            return self._product(x)
        return self._by_rule(x, self.rule)

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
        if device.type == "meta":
            return "free"  # nothing is computed
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
