"""The kernel on a GPU: every instruction as the interpreter has it, whole answers, cancelled ones, its time stamps."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cycle_checks import PROMPT, check_hand_back, check_text_and_state
from kernel_diff import Comparison
from on_kernel import MakeOnKernel, OnKernel
from small_models import SIZES

from server.gguf.types import TensorType
from server.kernel.device import DeviceBuffers
from server.kernel.instructions import WeightPhase
from server.kernel.plan import build_plan
from server.kernel.sequence import Buffers, count, roll_back, settle
from server.kernel.structs import TYPES

pytestmark = pytest.mark.timeout(600)
CONTEXTS = (0, 1, 63, 64, 65, 190, 4095, 32768)
ANSWER = 4000


def filled(small: OnKernel, context: int, seed: int = 0) -> DeviceBuffers:
    """Buffers as after a launch at a context of any length: sound sizes, no text behind them."""
    at = small.kernel.new_buffers(context + 64, logits=True)
    generator = torch.Generator("cuda").manual_seed(seed)
    for name, buffer in at.listed.items():
        if buffer.kind in ("f32", "f16") and buffer.kept:
            at[name].copy_(torch.randn(buffer.shape, device="cuda", generator=generator))
        if name.endswith(".memory"):
            at[name].mul_(0.1)
        if name.endswith(".decays"):
            at[name].sigmoid_()
    vocab = small.model.config.vocab
    for name in ("accepted", "given"):
        at[name].copy_(torch.randint(vocab, at[name].shape, device="cuda", generator=generator))
    fold = min(context, 1 + seed % 8)
    at["counts"].copy_(torch.tensor([context, fold, max(1, fold), 1]))
    return at


def compare(small: OnKernel, context: int, rows: int, drafts: int, launches: int = 2) -> Comparison:
    """Launches after a context, instruction by instruction; the host keeps some rows of each."""
    at = filled(small, context, seed=rows + context)
    comparison = Comparison(small.kernel, small.interpreter, {})
    for launch in range(launches):
        if launch:
            settle(at, [5 * k for k in range(1 + (context + 3) % rows)], rows)
        comparison.run(build_plan(small.model, small.kernel.sms, rows, drafts, logits=True), at)
    return comparison


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("size", SIZES)
def test_every_instruction_equals_the_interpreters(make: MakeOnKernel, size: str, context: int) -> None:
    rows = 1 + (CONTEXTS.index(context) * 3 + SIZES.index(size)) % 8
    compare(make(size), context, rows, drafts=(0, 2)[context % 2])
    compare(make(size), context, 16, drafts=1, launches=1)


def test_every_number_of_rows_and_drafts(make: MakeOnKernel) -> None:
    for rows in range(1, 17):
        compare(make("27b"), 60, rows, drafts=rows % 8, launches=1)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_every_type(make: MakeOnKernel, type: TensorType) -> None:
    compare(make("4b", type), 20, 3, drafts=1, launches=1)


@pytest.mark.parametrize("rows", [8, 16])
def test_inputs_in_windows(make: MakeOnKernel, rows: int) -> None:
    compare(make("wide"), 500, rows, drafts=1)


# ---------------------------------------------------------------------------------------------------- whole answers


@pytest.mark.parametrize("size", SIZES)
def test_text_and_state_are_the_same_for_every_accepted_count(make: MakeOnKernel, size: str) -> None:
    check_text_and_state(make(size), (3, 7, 15), reference=False)


def test_a_state_goes_back_to_the_reference(make: MakeOnKernel) -> None:
    check_hand_back(make("27b"), 24)


def launched(small: OnKernel, rows: int, drafts: int, stepwise: bool) -> Buffers:
    at = filled(small, 300)
    plan = build_plan(small.model, small.kernel.sms, rows, drafts)
    for _ in range(2):
        for first in range(len(plan.instructions) if stepwise else 1):
            small.kernel.run(plan, at, first, first + 1 if stepwise else None)
    return {name: at[name].clone() for name, buffer in at.listed.items() if buffer.kept}


@pytest.mark.parametrize(("rows", "drafts"), [(1, 0), (5, 4), (8, 7), (16, 0)])
def test_a_launch_is_the_same_to_the_bit_again_and_again_and_in_steps(
    make: MakeOnKernel, rows: int, drafts: int
) -> None:
    wanted = launched(make("27b"), rows, drafts, stepwise=True)
    for _ in range(20):
        found = launched(make("27b"), rows, drafts, stepwise=False)
        assert all(torch.equal(found[name], x) for name, x in wanted.items())


def answer(small: OnKernel, length: int) -> tuple[list[int], Buffers]:
    at, _ = small.start(PROMPT[:-1], PROMPT[-1], capacity=length + 128)
    cycles, text = small.cycles(at), []
    while len(text) < length:
        text += cycles.cycle(0)
    return text, at


def test_a_long_answer_is_the_same_with_any_drafts_and_whatever_is_cancelled(make: MakeOnKernel) -> None:
    """An oracle gives every accepted count of every depth; now and then the answer ends inside a cycle, to go on."""
    small, choose = make("27b"), random.Random(1)
    truth, _ = answer(small, ANSWER)
    at, _ = small.start(PROMPT[:-1], PROMPT[-1], capacity=ANSWER + 128)
    cycles, text, vocab = small.cycles(at), [], small.model.config.vocab
    every = [(depth, right) for depth in range(16) for right in range(depth + 1)]
    wanted: list[tuple[int, int]] = []
    rounds = 0
    while len(text) < ANSWER - 16:
        if not wanted:
            wanted, rounds = choose.sample(every, len(every)), rounds + 1
        depth, right = wanted.pop()
        drafts = truth[len(text) : len(text) + depth]
        given = [token if row < right else (token + 1) % vocab for row, token in enumerate(drafts)]
        tokens = cycles.cycle(choose.randrange(3), given)
        assert tokens == truth[len(text) : len(text) + right + 1]
        if choose.random() < 0.3:
            keep = choose.randrange(1, len(tokens) + 1)
            roll_back(at, keep)
            tokens = tokens[:keep]
        text += tokens
        assert count(at, "length") == len(PROMPT) - 1 + len(text)
    assert rounds > 1, "every accepted count of every depth"


def test_ten_thousand_cancelled_cycles(make: MakeOnKernel) -> None:
    """Rolled back over and over at the same place, a sequence goes on as if it had never been."""
    small, choose = make("4b"), random.Random(2)
    truth, _ = answer(small, 60)
    at, _ = small.start(PROMPT[:-1], PROMPT[-1], capacity=256)
    cycles, text = small.cycles(at), []
    text += cycles.cycle(0)
    for _ in range(10_000):
        if len(text) > 40:
            at, _ = small.start(PROMPT[:-1], PROMPT[-1], capacity=256)
            cycles = small.cycles(at)
            text = cycles.cycle(0)
        depth = choose.randrange(1, 8)
        tokens = cycles.cycle(choose.randrange(2), truth[len(text) : len(text) + depth])
        assert tokens == truth[len(text) : len(text) + depth + 1]
        keep = 1 if choose.random() < 0.9 else choose.randrange(1, depth + 2)
        roll_back(at, keep)
        text += tokens[:keep]


@pytest.mark.parametrize("drafts", range(1, 8))
def test_text_is_the_same_with_the_heads_own_drafts(make: MakeOnKernel, drafts: int) -> None:
    small = make("27b")
    assert small.generate(PROMPT, 200, drafts)[0][:200] == answer(small, 200)[0]


# ---------------------------------------------------------------------------------------------------- around it


def test_time_stamps_follow_each_other(make: MakeOnKernel) -> None:
    small = make("27b", timed=True)
    plan = build_plan(small.model, small.kernel.sms, 5, 4)
    times = small.kernel.times(plan, filled(small, 300))
    assert times.shape == (len(plan.instructions), small.kernel.sms, 6)
    assert bool((times[:, :, [0, 1, 4, 5]] > 0).all())
    streams = torch.tensor([isinstance(i, WeightPhase) for i in plan.instructions])
    busy = torch.tensor([[share.start < share.stop for share in i.ranges] for i in plan.instructions])
    assert torch.equal((times[streams][:, :, 2:4] > 0).cpu(), busy[streams][:, :, None].expand(-1, -1, 2))
    assert not times[~streams][:, :, 2:4].any()
    assert bool((times[:, :, [0, 1, 4, 5]].diff(dim=2) >= 0).all())
    multiplied = times[streams][times[streams][:, :, 3] > 0]  # by SMs that have tiles
    assert bool((multiplied[:, [0, 1, 3, 4, 5]].diff(dim=1) >= 0).all())
    assert bool((multiplied[:, 2] <= multiplied[:, 3]).all())
    assert bool((times[1:, :, 1] >= times[:-1, :, 5].amax(1, keepdim=True) - 2000).all()), "nobody is let in too early"


HANGING = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from on_kernel import kernel_model_file, on_kernel
from server.kernel.gpu import GpuKernel
from server.kernel.plan import build_plan
small = on_kernel(kernel_model_file(Path({folder!r}), "27b"), lambda m, w: GpuKernel(m, w), "cuda")
small.kernel._control.epoch += 5  # as if launches before had been lost
at, _ = small.start([1, 2], 3)
small.kernel.run(build_plan(small.model, small.kernel.sms, 1, 0), at)
"""


def test_a_launch_that_hangs_ends_with_the_place_where_it_waited(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    script = HANGING.format(paths=[str(root), str(root / "tests" / "support")], folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "KernelFault: the decode kernel waited too long on SM" in done.stderr
    assert "AT_GRID" in done.stderr or "AT_GO" in done.stderr
