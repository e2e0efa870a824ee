"""The read stream: it reads everything once (on the emulator), and compiles for every architecture."""

import pytest
import torch
from emulated import Emulated, compiler

from bench.kernel.stream import StreamStruct, compiled, constants, own_text, parameter, ring
from server.kernel.source import SHARED_BYTES


@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_it_compiles_for_every_architecture_and_fits(arch: int) -> None:
    assert len(compiled(arch)) > 1000
    stages, shared = ring(arch)
    assert stages >= 4
    assert shared <= SHARED_BYTES[arch]


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("arch", [80, 90])
def test_every_byte_is_read_once_whatever_the_sizes(arch: int) -> None:
    kernel = Emulated([("stream.cu", own_text())], {**constants(arch)}, "stream", "Stream")
    sizes = [16, 48, 16 * 7001, 16384 * 5, 16]  # fewer units than SMs, odd shares, whole stages
    matrices = [kernel.empty((size,), torch.uint8) for size in sizes]  # behind each, memory is closed
    for seed in range(2):
        struct, (_, read, fault) = parameter(matrices, 3)
        assert isinstance(struct, StreamStruct)
        kernel.run(struct, 3, ring(arch)[1], seed=seed)
        assert int(read.sum()) == sum(sizes)
        assert int(read.min()) > sum(sizes) // 3 - 100
        assert int(fault) == 0


def test_tensors_that_a_bulk_copy_can_not_take_are_refused() -> None:
    with pytest.raises(ValueError, match="aren't whole units of 16"):
        parameter([torch.zeros(40, dtype=torch.uint8)], 2)
