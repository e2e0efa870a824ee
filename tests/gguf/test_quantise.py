"""The quantiser: error no larger than another engine's, and sane on every kind of row."""

import os
from pathlib import Path

import pytest
import torch
from golden_files import FOLDER

from server.gguf.codecs import dequantise
from server.gguf.quantise import PACKERS, QuantisationError, quantise
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType

K_QUANTS = (TensorType.Q4_K, TensorType.Q5_K, TensorType.Q6_K)


def rms(x: torch.Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt())


def relative_error(x: torch.Tensor, type: TensorType) -> float:
    return rms(dequantise(quantise(x, type), type) - x) / max(rms(x), 1e-300)


def ratios_to(source: ModelFile, golden: ModelFile) -> dict[str, list[float]]:
    """Our RMS error over the golden file's, for every tensor that both have, by tensor type."""
    ratios: dict[str, list[float]] = {}
    for name, info in golden.tensors.items():
        if info.type in K_QUANTS and name in source.tensors:
            x = source.tensor(name)
            ours = dequantise(quantise(x, info.type), info.type)
            ratios.setdefault(info.type.name, []).append(rms(ours - x) / rms(golden.tensor(name) - x))
    return ratios


def test_error_is_at_most_that_of_the_golden_files_for_every_tensor_type() -> None:
    source = ModelFile.open(FOLDER / "excerpt-b-Q8_0.gguf")
    mixed = ratios_to(source, ModelFile.open(FOLDER / "hybrid-b-Q4_K_M.gguf"))
    fives = ratios_to(source, ModelFile.open(FOLDER / "excerpt-b-Q5_K_M.gguf"))
    assert mixed.keys() == {"Q4_K", "Q6_K"}
    assert fives.keys() == {"Q5_K"}
    assert max(mixed["Q4_K"]) < 1.0
    assert max(fives["Q5_K"]) < 0.97
    assert max(mixed["Q6_K"]) < 0.93


@pytest.mark.skipif("DRAFTLINE_GOLDEN" not in os.environ, reason="needs the folder of all golden files")
@pytest.mark.parametrize("name", ["Q4_K_M", "Q5_K_M", "Q6_K"])
def test_error_is_at_most_that_of_every_tensor_of_the_golden_files(name: str) -> None:
    folder = Path(os.environ["DRAFTLINE_GOLDEN"])
    source = ModelFile.open(folder / "hybrid-b-Q8_0.gguf")
    ratios = ratios_to(source, ModelFile.open(folder / f"hybrid-b-{name}.gguf"))
    assert ratios
    assert max(max(found) for found in ratios.values()) < 1.0


BITS_ENOUGH = {
    TensorType.F32: 0.0,
    TensorType.F16: 4e-4,
    TensorType.BF16: 3e-3,
    TensorType.Q8_0: 8e-3,
    TensorType.Q4_K: 0.08,
    TensorType.Q5_K: 0.04,
    TensorType.Q6_K: 0.02,
}

ROWS = {
    "normal": torch.randn(4, 512, generator=torch.Generator().manual_seed(1)) * 0.02,
    "large": torch.randn(4, 512, generator=torch.Generator().manual_seed(2)) * 1e3,
    "positive": torch.rand(4, 512, generator=torch.Generator().manual_seed(3)) + 1,
    "negative": -torch.rand(4, 512, generator=torch.Generator().manual_seed(4)) - 1,
    "constant negative": torch.full((2, 256), -0.37),
    "constant positive": torch.full((2, 256), 0.37),
    "one outlier": torch.cat((torch.full((2, 255), 1e-3), torch.full((2, 1), -90.0)), 1),
}


@pytest.mark.parametrize("type", PACKERS, ids=lambda type: type.name)
@pytest.mark.parametrize("rows", ROWS)
def test_every_kind_of_row_comes_back_within_the_precision_of_the_type(type: TensorType, rows: str) -> None:
    assert relative_error(ROWS[rows], type) <= BITS_ENOUGH[type]


@pytest.mark.parametrize("type", PACKERS, ids=lambda type: type.name)
def test_zeros_and_subnormal_weights_come_back_finite(type: TensorType) -> None:
    assert not dequantise(quantise(torch.zeros(2, 256), type), type).any()
    x = torch.cat((torch.randn(2, 255) * 1e-40, torch.full((2, 1), 1e-44)), 1)
    assert dequantise(quantise(x, type), type).abs().max() < 1e-30


@pytest.mark.parametrize("type", [TensorType.Q8_0, *K_QUANTS], ids=lambda type: type.name)
def test_weights_whose_scale_is_near_the_smallest_half_do_not_vanish(type: TensorType) -> None:
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(5)) * 1e-6
    assert relative_error(x, type) < 0.15


@pytest.mark.parametrize("type", PACKERS, ids=lambda type: type.name)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(type: TensorType, bad: float) -> None:
    x = torch.zeros(3, 256)
    x[2, 77] = bad
    with pytest.raises(QuantisationError, match=type.name):
        quantise(x, type)


@pytest.mark.parametrize("type", [TensorType.F16, TensorType.Q8_0, *K_QUANTS], ids=lambda type: type.name)
def test_weights_beyond_the_scales_of_the_type_are_refused_and_none_becomes_infinite(type: TensorType) -> None:
    with pytest.raises(QuantisationError, match="magnitude"):
        quantise(torch.full((1, 256), 1e20), type)
    assert dequantise(quantise(torch.full((1, 256), -6e4), type), type).isfinite().all()


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(QuantisationError, match="Q4_K blocks of 256"):
        quantise(torch.zeros(2, 255), TensorType.Q4_K)


def test_a_type_that_is_only_read_is_refused() -> None:
    with pytest.raises(QuantisationError, match="IQ4_XS"):
        quantise(torch.zeros(2, 256), TensorType.IQ4_XS)


@pytest.mark.parametrize("type", K_QUANTS, ids=lambda type: type.name)
def test_a_block_is_quantised_the_same_whatever_stands_around_it(type: TensorType) -> None:
    x = torch.randn(300, 256, generator=torch.Generator().manual_seed(6))
    assert torch.equal(quantise(x, type)[-1:], quantise(x[-1:], type))
