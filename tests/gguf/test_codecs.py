"""Dequantisation gives the very bits of the gguf package's, for every type and on every golden file."""

import gguf
import numpy as np
import pytest
import torch
from golden_files import models

from server.gguf.codecs import CODECS, dequantise
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType, block_size


def same_bits(ours: torch.Tensor, theirs: np.ndarray) -> bool:
    """Equal bit by bit; a NaN equals any NaN (its payload has no meaning)."""
    a, b = ours.numpy(), np.ascontiguousarray(theirs, dtype=np.float32)
    both_nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool(((a.view(np.uint32) == b.view(np.uint32)) | both_nan).all())


@pytest.mark.parametrize("type", CODECS, ids=lambda type: type.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, on infinite scales
def test_random_blocks_have_the_same_bits_as_in_the_gguf_package(type: TensorType) -> None:
    """Random bytes: every code, and scales of every size with zeros, subnormals, infinities and NaNs among them."""
    weights, size = block_size(type)
    raw = np.random.default_rng(type).integers(0, 256, (3, size * (65536 // weights)), dtype=np.uint8)
    assert same_bits(dequantise(torch.from_numpy(raw), type), gguf.quants.dequantize(raw, type))


@pytest.mark.parametrize("path", models(), ids=lambda path: path.stem)
def test_golden_tensors_have_the_same_bits_as_in_the_gguf_package(path) -> None:
    file = ModelFile.open(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert file.tensors.keys() == theirs.keys()
    for name, tensor in theirs.items():
        shape = tuple(tensor.shape.tolist()[::-1])
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        assert same_bits(file.tensor(name, shape), expected), name


def test_types_that_the_family_uses_can_all_be_read() -> None:
    needed = "F32 F16 BF16 Q8_0 Q4_0 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS IQ4_NL IQ3_S MXFP4"
    assert {TensorType[name] for name in needed.split()} <= CODECS.keys()


def test_a_chunk_boundary_inside_a_row_changes_nothing() -> None:
    raw = torch.randint(0, 256, (3, 144 * 201), dtype=torch.uint8)
    whole = dequantise(raw, TensorType.Q4_K)
    blocks = dequantise(raw.view(-1, 144), TensorType.Q4_K)
    assert torch.equal(whole.view(-1, 256).nan_to_num(), blocks.nan_to_num())


def test_rows_of_broken_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="Q6_K blocks of 210 bytes"):
        dequantise(torch.zeros(2, 209, dtype=torch.uint8), TensorType.Q6_K)
