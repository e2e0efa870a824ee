"""The device code on the emulator: every instruction as the interpreter has it, whole answers, planted faults."""

from dataclasses import replace

import pytest
import torch
from cycle_checks import PROMPT, check_hand_back, check_text_and_state
from emulated import EmulationError, compiler
from emulated_kernel import EmulatedKernel
from kernel_diff import Comparison
from on_kernel import MakeOnKernel, OnKernel, kernel_model_file, on_kernel
from small_models import SIZES, prompt_of, small_preset

from server.gguf.types import TensorType
from server.kernel.plan import build_plan
from server.kernel.sequence import settle
from server.kernel.source import Shape
from server.kernel.structs import TYPES

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler"),
    pytest.mark.timeout(300),
]
SMS = 7
CONTEXTS = (0, 1, 63, 64, 65, 190)
NARROW = {1: Shape(1, 4864, 4, 36864), 2: Shape(2, 4352, 3, 36864)}
"""The least shared memory: rings of single tiles, and inputs in windows."""


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> MakeOnKernel:
    """make(size, ...): a small model of a size's ratios on the emulator; options as `EmulatedKernel` has them."""
    folder, made = tmp_path_factory.mktemp("kernel"), {}

    def maker(size: str, type: TensorType | None = None, sms: int = SMS, **options: object) -> OnKernel:
        key = (size, type, sms, *sorted((name, str(value)) for name, value in options.items()))
        if key not in made:
            preset = WIDE if size == "wide" else None
            path = kernel_model_file(folder, size, preset, type)
            made[key] = on_kernel(path, lambda model, weights: EmulatedKernel(model, weights, sms, **options))
        return made[key]

    return maker


WIDE = replace(small_preset("27b"), key_heads=12, value_heads=36, ffn=4096)
"""Feed-forward rows and value heads that don't fit into shared memory at once."""


def compare(small: OnKernel, context: int, rows: int, drafts: int, given: bool = True, launches: int = 2) -> Comparison:
    """Launches after a context, instruction by instruction; each but the first folds in what the host has kept of the
    one before it, one to all rows."""
    ids = prompt_of(context + rows)
    at, _ = small.start(ids[:context], ids[context], capacity=context + 64)
    at["given"][: rows - 1] = torch.tensor(ids[context + 1 :], dtype=torch.int32)
    at["counts"][3] = int(given)
    comparison = Comparison(small.kernel, small.interpreter, {})
    for launch in range(launches):
        if launch:
            settle(at, ids[-1 - (context + 3) % rows :], rows)
        comparison.run(build_plan(small.model, small.kernel.sms, rows, drafts, logits=True), at)
    return comparison


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("size", SIZES)
def test_every_instruction_equals_the_interpreters(make: MakeOnKernel, size: str, context: int) -> None:
    """All types in one model; 1 to 8 rows, with drafts of the host or of the head."""
    rows = 1 + (CONTEXTS.index(context) * 3 + SIZES.index(size)) % 8
    compare(make(size), context, rows, drafts=(0, 2)[context % 2])
    if size == "27b":
        compare(make(size), context, 4, drafts=3, given=False)


def test_every_number_of_rows_equals_the_interpreter(make: MakeOnKernel) -> None:
    for rows in range(1, 17):
        compare(make("27b"), 60, rows, drafts=rows % 3, launches=1)


def test_sixteen_rows_on_both_sides_of_a_change_of_parts(make: MakeOnKernel) -> None:
    """At 192 the parts of the context change their size (3 parts of 64)."""
    compare(make("27b"), 185, 16, drafts=2)


def test_every_type_as_output_matrix(make: MakeOnKernel) -> None:
    """Its input has two planes. In a tied model it is the embedding as well."""
    for type in TYPES:
        compare(make("4b", type, all_types=True), 20, 3, drafts=1, launches=1)


@pytest.mark.parametrize("rows", [8, 16])
def test_inputs_in_windows_and_rings_of_single_tiles(make: MakeOnKernel, rows: int) -> None:
    compare(make("wide", TensorType.Q8_0, shapes=NARROW), 5, rows, drafts=1, launches=1)


@pytest.mark.parametrize("sms", [3, 40])
def test_few_and_many_sms(make: MakeOnKernel, sms: int) -> None:
    """On 40 SMs several of them share a group, and some have nothing to do."""
    compare(make("27b", TensorType.Q6_K, sms=sms), 20, 5, drafts=2, launches=1)


def test_copies_of_sixteen_bytes_as_before_hopper(make: MakeOnKernel) -> None:
    compare(make("27b", TensorType.Q5_K, arch=80), 20, 5, drafts=2, launches=1)


# ---------------------------------------------------------------------------------------------------- whole launches


def launched(small: OnKernel, rows: int, drafts: int, stepwise: bool = False) -> dict[str, torch.Tensor]:
    """What two launches leave in the buffers that are kept."""
    at, _ = small.start(PROMPT[:-1], PROMPT[-1])
    plan = build_plan(small.model, small.kernel.sms, rows, drafts)
    for _ in range(2):
        for first in range(len(plan.instructions) if stepwise else 1):
            small.kernel.run(plan, at, first, first + 1 if stepwise else None)
    return {name: at[name].clone() for name, buffer in at.listed.items() if buffer.kept}


def test_no_order_of_turns_changes_a_bit(make: MakeOnKernel) -> None:
    """Whatever warp comes first, and however late copies arrive; nor does a barrier more between launches."""
    wanted = launched(make("27b"), 5, 4, stepwise=True)
    for options in ({}, {"seed": 100}, {"seed": 200, "delay": 0}, {"seed": 300, "delay": 5000}):
        found = launched(make("27b", **options), 5, 4)
        assert all(torch.equal(found[name], x) for name, x in wanted.items())


@pytest.mark.parametrize("bits", [31, 32])
def test_counters_of_the_barrier_run_over(make: MakeOnKernel, bits: int) -> None:
    """Of arrivals, and of instructions."""
    wanted = launched(make("27b"), 2, 1)
    for epoch in (2**bits - 20, 2**bits // SMS - 20):
        found = launched(make("27b", epoch=epoch), 2, 1)
        assert all(torch.equal(found[name], x) for name, x in wanted.items())


def test_text_and_state_are_the_same_for_every_accepted_count(make: MakeOnKernel) -> None:
    check_text_and_state(make("27b"), (3,), reference=False, length=12)


def test_text_and_state_are_the_same_with_more_than_eight_rows(make: MakeOnKernel) -> None:
    check_text_and_state(make("27b"), (11,), reference=False, counts=(9,), length=12)


@pytest.mark.parametrize("drafts", [1, 4])
def test_text_is_the_same_with_the_heads_own_drafts(make: MakeOnKernel, drafts: int) -> None:
    small = make("27b")
    assert small.generate(PROMPT, 12, drafts)[0][:12] == small.generate(PROMPT, 12)[0]


def test_a_state_goes_back_to_the_reference(make: MakeOnKernel) -> None:
    check_hand_back(make("27b"), 12)


def test_logits_that_are_not_numbers_are_left_for_the_host_to_see(make: MakeOnKernel) -> None:
    small = make("27b", TensorType.F32)
    tiles = small.kernel.weights.matrices[small.model.output, False]
    first = tiles.view(torch.float32)[:1]
    before = first.clone()
    try:
        first.fill_(torch.nan)  # of one row of the vocabulary
        at, _ = small.start(PROMPT[:-1], PROMPT[-1])
        small.kernel.run(build_plan(small.model, small.kernel.sms, 3, 0), at)
        best = at["best"][:3, :, 0]
    finally:
        first.copy_(before)
    assert best.isnan().any(1).all()
    assert not best.isnan().all()


# ---------------------------------------------------------------------------------------------------- planted faults

FAULTS = {
    "weights are read before they have arrived": ("barrier_wait(Barriers::stage_full(", "(void)(Barriers::stage_full("),
    "activations are read before they have arrived": (
        "barrier_wait(Barriers::window_full(first), parity, l, AT_WINDOW_FULL);",
        ";",
    ),
    "a stage is filled before it has been read": (
        "barrier_wait(Barriers::stage_empty(",
        "(void)(Barriers::stage_empty(",
    ),
    "sums are overwritten before they have been read": (
        "barrier_wait(Barriers::partial_empty(",
        "(void)(Barriers::partial_empty(",
    ),
    "instructions don't wait for the other SMs": (
        "wait_for_count(l.barrier, ((u32)l.epoch + index) * sm_count(), l, AT_GRID);",
        ";",
    ),
    "handed sums are added before they are there": (
        "wait_for_count(l.handed + sm * 32, (u32)l.epoch + index + 1, l, AT_HANDED);",
        ";",
    ),
    "one kept row too few is folded in": ("(u32)l.counts[FOLD]", "(u32)(l.counts[FOLD] - (l.counts[FOLD] > 0))"),
    "drafts are accepted unseen": ("best[kept - 1] == load_fresh(i.tokens + kept)", "true"),
    "a row goes to its neighbour's slot": ("(length + row) % RING", "(length + row + 1) % RING"),
    "values are rounded to 127 steps of 128": ("/ 127.0f", "/ 128.0f"),
}


def check_against(sound: OnKernel, small: OnKernel) -> None:
    """Whole launches, for some faults don't show as long as each instruction is a launch of its own; then these."""
    for seed in range(3):
        small.kernel.seed = 1000 * seed
        wanted, found = launched(sound, 5, 2), launched(small, 5, 2)
        assert all(torch.equal(found[name], x) for name, x in wanted.items())
    compare(small, 21, 5, drafts=2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(make: MakeOnKernel, fault: str) -> None:
    sound, faulty = make("27b", TensorType.Q4_K), make("27b", TensorType.Q4_K, patch=FAULTS[fault], delay=2000)
    faulty.kernel.variant(1)  # it compiles
    with pytest.raises((EmulationError, AssertionError)):
        check_against(sound, faulty)


def test_no_fault_is_noticed_where_there_is_none(make: MakeOnKernel) -> None:
    sound = make("27b", TensorType.Q4_K)
    check_against(sound, make("27b", TensorType.Q4_K, delay=2000))


def test_a_window_of_the_input_that_is_overwritten_too_early_is_noticed(make: MakeOnKernel) -> None:
    fault = ("barrier_wait(Barriers::window_empty(", "(void)(Barriers::window_empty(")
    faulty = make("wide", TensorType.Q8_0, shapes=NARROW, patch=fault, delay=2000)
    faulty.kernel.variant(1)  # it compiles
    with pytest.raises((EmulationError, AssertionError)):
        compare(faulty, 5, 8, drafts=1, launches=1)
