"""Random blocks are sound blocks of their type, with the mean and the spread that were asked for."""

from math import sqrt

import numpy as np
import pytest
import torch

from server.gguf.codecs import dequantise
from server.gguf.types import TensorType, block_size
from server.synth.blocks import MAKERS, random_blocks

COUNT = 8192


def make(type: TensorType, spread: float = 1 / 64, count: int = COUNT, seed: int = 1) -> np.ndarray:
    return random_blocks(type, count, spread, np.random.Generator(np.random.SFC64(seed)))


@pytest.mark.parametrize("type", MAKERS, ids=lambda type: type.name)
@pytest.mark.parametrize("columns", [256, 5120, 17408])  # the last two make scales that are subnormal halves
def test_weights_have_mean_0_and_the_spread_asked_for(type: TensorType, columns: int) -> None:
    spread = 1 / sqrt(columns)
    raw = make(type, spread, 1 << 19 if block_size(type)[0] < 256 else 1 << 12)
    x = dequantise(torch.from_numpy(raw), type)
    assert abs(float(x.std()) / spread - 1) < 0.02
    assert abs(float(x.mean())) < 0.01 * spread
    assert float(x.abs().max()) < 6 * spread


@pytest.mark.parametrize("type", MAKERS, ids=lambda type: type.name)
def test_no_two_blocks_are_equal(type: TensorType) -> None:
    raw = make(type)
    if block_size(type)[0] > 1:
        assert len(np.unique(raw, axis=0)) == COUNT
    assert not np.array_equal(raw, make(type, seed=2))


@pytest.mark.parametrize(("type", "columns"), [(TensorType.Q4_K, (0, 1)), (TensorType.Q5_K, (0, 1)),
                                                (TensorType.Q6_K, (104,)), (TensorType.Q8_0, (0,))])  # fmt: skip
def test_half_precision_scales_are_positive_and_vary_from_block_to_block(type, columns) -> None:
    halves = make(type).view(np.float16).astype(np.float32)
    for column in columns:
        assert (halves[:, column] > 0).all()
        relative = halves[:, column] / halves[:, column].mean()
        assert 0.9 < relative.min() < 0.97
        assert 1.03 < relative.max() < 1.1


@pytest.mark.parametrize("type", [TensorType.Q4_K, TensorType.Q5_K])
def test_scales_and_offsets_of_sub_blocks_are_not_the_same_numbers(type: TensorType) -> None:
    raw = make(type)
    swapped = raw.copy()
    swapped[:, 4:8], swapped[:, 8:12] = raw[:, 8:12], raw[:, 4:8]
    a, b = (dequantise(torch.from_numpy(x), type) for x in (raw, swapped))
    assert float((a - b).std()) > 0.2 * float(a.std())


def test_q8_0_has_no_code_that_no_quantiser_writes() -> None:
    codes = make(TensorType.Q8_0).view(np.int8)[:, 2:]
    assert codes.min() == -127
    assert codes.max() == 127


def test_a_spread_that_scales_cannot_express_is_refused() -> None:
    for spread in (1e-9, 1e9):
        with pytest.raises(ValueError, match="can't vary around"):
            make(TensorType.Q4_K, spread)
