"""The emulator itself: its numbers and tensor cores against torch, and that it notices what a GPU would do wrong."""

import ctypes
import re

import pytest
import torch
from emulated import DEVICE, HERE, Emulated, EmulationError

SMS = 3
SHARED = 8192

SOURCE = """
struct Test { u32* out; const u32* in; u32* counter; u64 mode; };
enum { FINE, EARLY, HALF_A_WARP, OUTSIDE, NOBODY, UNEVEN, MIXED, OVERWRITTEN, TOO_MANY, UNANNOUNCED, ENDLESS, HANGING };

DEVICE float sum_of(const float* values) {
  float sum = 0;
  for (u32 i = thread_index() & 31; i < 1024; i += 32) sum += values[i];
  for (u32 m = 16; m; m >>= 1) sum += shuffle_xor(sum, m);
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) faults(Test p) {
  u32 t = thread_index(), lane = t & 31, warp = t / 32;
  const u32 full = 0;
  if (t == 0) load_barrier_init(full);
  fence_barrier_init();
  sync_threads(1, THREADS);
  if (warp == PRODUCER_WARP) {
    load_begin(full, p.mode == UNANNOUNCED ? 2048 : 4096);
    load(1024, p.in, 2048, full);
    load_stream(3072, p.in + 512, 2048, full, stream_policy());
    load_end(full);
  }
  if (p.mode == OVERWRITTEN && t == 40) *shared<u64>(full) = 12;
  if (p.mode == TOO_MANY && t == 40) barrier_arrive(full), barrier_arrive(full), barrier_arrive(full);
  if (p.mode != EARLY) barrier_wait(full, 0, Launch{}, 5);
  float sum = 0;
  if (warp < MATH_WARPS) sum = sum_of(shared<float>(1024));
  if (p.mode == HALF_A_WARP && warp == 3 && lane < 5) sync_warp();
  if (p.mode == OUTSIDE && t == 7) *(volatile u8*)shared<u8>(SHARED) = 1;
  if (p.mode == UNEVEN && t < 64 && t != 40) sync_threads(3, t == 9 ? 96 : 64);
  if (p.mode == MIXED && warp == 2) {
    if (lane < 16) shuffle(lane, 3);
    else sync_warp();
  }
  if (p.mode == ENDLESS && t == 3) for (volatile u32 i = 0; ; i++) {}
  if (t == 0) {
    p.out[sm_index()] = as_bits(sum);
    add_release(p.counter, 1);
    wait_for_count(p.counter, sm_count() + (p.mode == NOBODY), Launch{}, 17);
  }
  if (p.mode == EARLY) barrier_wait(full, 0, Launch{}, 6);
  sync_threads(2, THREADS);
  if (p.mode == HANGING && warp == PRODUCER_WARP) {
    load_begin(full, 16);
    load(1024, p.in, 16, full);
    load_end(full);
  }
}
"""

NUMBERS = """
struct Test { u32* out; const u32* in; u64 count; u64 what; };
extern "C" __global__ void numbers(Test p) {
  for (u32 i = thread_index(); i < p.count; i += 32) {
    const u32* in = p.in + 3 * i;
    u32 found = 0;
    if (p.what == 0) found = float_to_half2(as_float(in[0]), as_float(in[1]));
    if (p.what == 1) found = float_to_bfloat2(as_float(in[0]), as_float(in[1]));
    if (p.what == 2) found = half2_fma(in[0], in[1], in[2]);
    if (p.what == 3) found = bfloat2_fma(in[0], in[1], in[2]);
    if (p.what == 4) found = as_bits(half_to_float((u16)in[0]));
    if (p.what == 5) found = (u32)round_to_int(as_float(in[0]));
    if (p.what == 6) found = permute(in[0], in[1], 0x7251);
    p.out[i] = found;
  }
}
"""

PRODUCTS = """
struct Test { u32* out; const u32* a; const u32* b; u64 what; };
extern "C" __global__ void products(Test p) {
  u32 lane = thread_index(), g = lane / 4, t = lane % 4;
  i32 c[4] = {};
  const u32 start[4] = {7, 7, 7, 7};
  float f[4] = {};
  // Rows of A and columns of B are 8 words long (4 for k = 16 of int8).
  const u32 *a = p.a, *b = p.b;
  u32 a0 = a[g * 8 + t], a1 = a[(g + 8) * 8 + t], a2 = a[g * 8 + 4 + t], a3 = a[(g + 8) * 8 + 4 + t];
  u32 b0 = b[g * 8 + t], b1 = b[g * 8 + 4 + t];
  if (p.what == 0) mma_u8s8(c, a0, a1, a2, a3, b0, b1, start);
  if (p.what == 1) mma_s8s8(c, a0, a1, a2, a3, b0, b1, start);
  if (p.what == 2) mma_s8s8_k16(c, a0, a1, b0, start);
  if (p.what == 3) mma_half(f, a0, a1, a2, a3, b0, b1);
  if (p.what == 4) mma_bfloat(f, a0, a1, a2, a3, b0, b1);
  for (u32 i = 0; i < 4; i++) p.out[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = p.what < 3 ? (u32)c[i] : as_bits(f[i]);
}
"""


class Parameter(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("out", "first", "second", "mode")]


def run_faults(mode: int, seed: int, arch: int = 90, delay: int = 200, seconds: int = 60) -> list[float]:
    kernel = Emulated([("faults.cuh", SOURCE)], {"ARCH": arch, "SHARED": SHARED}, "faults", "Test")
    given, out, counter = torch.arange(1024.0), torch.zeros(SMS), torch.zeros(1, dtype=torch.int32)
    parameter = Parameter(out.data_ptr(), given.data_ptr(), counter.data_ptr(), mode)
    kernel.run(parameter, SMS, SHARED, seed=seed, delay=delay, seconds=seconds)
    return out.tolist()


@pytest.mark.parametrize("delay", [0, 200])
@pytest.mark.parametrize("arch", [80, 90])
def test_copies_shuffles_and_barriers_give_every_block_its_sum(arch: int, delay: int) -> None:
    for seed in range(5):
        assert run_faults(0, seed, arch, delay) == [523776.0] * SMS


@pytest.mark.parametrize("arch", [80, 90])
def test_reading_before_a_copy_has_arrived_gives_nonsense(arch: int) -> None:
    assert any(run_faults(1, seed, arch) != [523776.0] * SMS for seed in range(3))


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (2, "warp 3 lanes 0000001f: in sync_warp"),
        (3, "closed memory at .*: byte 8192 of 8192 of block .'s shared memory"),
        (4, r"deadlock[^$]*poll \(where = 17\)"),
        (5, "barrier 3 of .* threads, but others wait there for"),
        (6, "in (sync_warp|shuffle)"),
        (7, "the mbarrier at byte 0 isn't initialised, or something has been written over it"),
        (8, r"more arrivals at the mbarrier|deadlock|never came"),
        (9, "deadlock|announced|on their way"),
        (11, "the last lane of the block ends with 1 copies on their way"),
    ],
)
def test_faults_end_the_launch_with_a_message(mode: int, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        run_faults(mode, seed=1)


def test_a_lane_that_never_waits_is_stopped() -> None:
    with pytest.raises(EmulationError, match=r"block . warp 0 lane 3 runs for too long"):
        run_faults(10, seed=1, seconds=1)


def test_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(EmulationError, match=r"wrong\.cuh:2:"):
        Emulated([("wrong.cuh", "\nthis is not C++")], {}, "wrong", "Launch")


FUNCTION = re.compile(r"^(?:template <class T> )?(?:DEVICE|inline) [\w*]+[ *&]+(\w+)\((.*?)\) \{", re.MULTILINE)


def test_the_emulator_has_every_primitive() -> None:
    wanted, found = (
        {
            (name, len([p for p in parameters.split(", ") if p not in ("", "LINE")]))
            for name, parameters in FUNCTION.findall(path.read_text())
        }
        for path in (DEVICE / "primitives.cuh", HERE / "primitives.h")
    )
    assert len(wanted) > 40
    assert wanted <= found


# ---------------------------------------------------------------------------------------------------- numbers


def run_numbers(what: int, given: torch.Tensor) -> torch.Tensor:
    """given: int32 [n, 3]."""
    kernel = Emulated([("numbers.cuh", NUMBERS)], {}, "numbers", "Test")
    given = given.contiguous()
    out = kernel.empty((given.shape[0],), torch.int32)
    kernel.run(Parameter(out.data_ptr(), given.data_ptr(), given.shape[0], what), 1, 0, 32)
    return out


def awkward_floats() -> torch.Tensor:
    """Numbers of every size, those between two halves, and the ends of the ranges."""
    torch.manual_seed(1)
    wide = torch.randn(3000) * 2.0 ** torch.randint(-30, 20, (3000,))
    halves = torch.randint(0, 0x7BFF, (3000,), dtype=torch.int16).view(torch.float16).float()
    following = (halves.half().view(torch.int16) + 1).view(torch.float16).float()
    ends = torch.tensor(
        [0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e9, -1e9, 2.0**-24, 2.0**-25, 2.0**-25 * 1.001, 3.3e38, 1e-40]
    )
    return torch.cat((wide, (halves + following) / 2, halves, ends))


def test_halves_round_as_torch_rounds() -> None:
    values = awkward_floats()
    given = torch.zeros(len(values), 3, dtype=torch.int32)
    given[:, 0], given[:, 1] = values.view(torch.int32), (-values.flip(0)).view(torch.int32)
    for what, dtype in ((0, torch.float16), (1, torch.bfloat16)):
        found = run_numbers(what, given).view(torch.int16).view(-1, 2)
        assert torch.equal(found[:, 0], values.to(dtype).view(torch.int16))
        assert torch.equal(found[:, 1], (-values.flip(0)).to(dtype).view(torch.int16))


def test_every_half_has_its_value() -> None:
    bits = torch.arange(65536, dtype=torch.int32)
    found = run_numbers(4, bits[:, None].repeat(1, 3)).view(torch.float32)
    wanted = bits.to(torch.int16).view(torch.float16).float()
    assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
    assert torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.parametrize(("what", "dtype"), [(2, torch.float16), (3, torch.bfloat16)])
def test_fused_products_of_halves_round_once(what: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    a, b = (torch.randn(20000, 2).to(dtype) for _ in range(2))
    c = (-(a.float() * b.float()) * (1 + torch.randn(20000, 2) * 2.0 ** -torch.randint(2, 14, (20000, 2)))).to(dtype)
    given = torch.cat([x.view(torch.int32) for x in (a, b, c)], dim=1)
    found = run_numbers(what, given).view(dtype).view(-1, 2)
    assert torch.equal(found, (a.double() * b.double() + c.double()).to(dtype))  # exact in double for these sizes


def test_integers_and_bytes() -> None:
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 126.6, 3.0])
    given = values.view(torch.int32)[:, None].repeat(1, 3)
    assert run_numbers(5, given).tolist() == [0, 2, 2, 0, -2, 127, 3]
    assert run_numbers(6, torch.tensor([[0x33221100, 0x77665544, 0]], dtype=torch.int32)).tolist() == [0x77225511]


@pytest.mark.parametrize("what", range(5))
def test_products_of_tensor_cores(what: int) -> None:
    torch.manual_seed(what)
    if what < 3:
        a = torch.randint(0, 256, (16, 32)) if what == 0 else torch.randint(-128, 128, (16, 32))
        b = torch.randint(-128, 128, (8, 32))
        wanted = a @ b.t() if what < 2 else a[:, :16] @ b[:, :16].t()
        words = [x.to(torch.uint8).contiguous().view(torch.int32) for x in (a, b)]
    else:
        dtype = torch.float16 if what == 3 else torch.bfloat16
        a, b = torch.randn(16, 16).to(dtype), torch.randn(8, 16).to(dtype)
        wanted = a.double() @ b.double().t()
        words = [x.view(torch.int32) for x in (a, b)]
    kernel = Emulated([("products.cuh", PRODUCTS)], {}, "products", "Test")
    out = kernel.empty((16, 8), torch.int32)
    kernel.run(Parameter(out.data_ptr(), words[0].data_ptr(), words[1].data_ptr(), what), 1, 0, 32)
    if what < 3:
        assert torch.equal(out.long(), wanted + 7)  # what the sums began with
    else:
        assert torch.allclose(out.view(torch.float32).double(), wanted, atol=1e-5)
