"""The rounding of activations that the interpreter can imitate."""

import ctypes
import ctypes.util

import pytest
import torch

from server.kernel.arithmetic import Arithmetic, multiply_add, square_sums

KERNEL = Arithmetic(torch.float64, int8=True)


@pytest.mark.parametrize(("width", "segments"), [(64, 1), (96, 2), (40, 1), (48, 3)])
def test_rounding_is_off_by_half_a_step_and_with_the_rest_by_a_508th(width: int, segments: int) -> None:
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rounded = KERNEL.rounded(x, segments)
    part = width // segments
    for start in range(0, width, part):
        for at in range(start, start + part, 32):
            block = slice(at, min(at + 32, start + part))
            step = x[:, block].abs().amax(1, keepdim=True) / 127
            assert ((rounded - x)[:, block].abs() <= step / 2 + 1e-12).all()
            values = rounded[:, block] / step
            assert torch.allclose(values, values.round(), atol=1e-9)
    if segments == 1:
        both = rounded + KERNEL.left(x, rounded)
        step = x.abs().amax() / 127
        assert ((both - x).abs() <= step / 508 + 1e-12).all()
        assert (both - x).abs().max() > 0


def test_zeros_stay_zeros_and_without_rounding_nothing_is_left() -> None:
    zeros = torch.zeros(2, 64)
    assert torch.equal(Arithmetic(int8=True).rounded(zeros), zeros)
    x = torch.randn(2, 64)
    assert torch.equal(Arithmetic().rounded(x), x)
    assert torch.equal(Arithmetic().left(x, x), zeros)


def test_sums_of_squares_by_blocks_begin_anew_in_each_segment() -> None:
    x = torch.arange(80.0)[None]
    expected = [x[0, a:b].square().sum() for a, b in ((0, 32), (32, 40), (40, 72), (72, 80))]
    assert torch.equal(square_sums(x, 2)[0], torch.stack(expected))


def test_float32_products_and_sums_are_fused_to_the_bit() -> None:
    """With sums that cancel, and ties that only the lost part of a wider sum decides."""
    fused = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fused.restype, fused.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(20000, generator=generator) for _ in range(2))
    c = torch.randn(20000, generator=generator) * 2.0 ** torch.randint(-30, 30, (20000,), generator=generator)
    c[::2] = -(a * b)[::2] * (1 + 2.0 ** -torch.randint(1, 25, (10000,), generator=generator))
    tie = torch.tensor([1 + 2.0**-23, 1.0]), torch.tensor([2.0**-24, 2.0**-24]), torch.tensor([1.0, 1.0])
    for x, y, z in ((a, b, c), tie, (tie[0], -tie[1], -tie[2])):
        wanted = [fused(*row) for row in torch.stack((x, y, z), 1).tolist()]
        assert torch.equal(multiply_add(x, y, z), torch.tensor(wanted))
    assert torch.equal(multiply_add(a.double(), b.double(), c.double()), a.double() * b.double() + c.double())
