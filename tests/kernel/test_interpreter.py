"""The interpreter against the reference model, and its own instructions against what the plan says of them."""

from pathlib import Path

import golden_files
import numpy as np
import pytest
import torch
from small_models import EXACT, KERNEL_LIKE, SIZES, SMS, MakeSmall, load, prompt_of

from server.gguf.reader import ModelFile
from server.kernel.arithmetic import Arithmetic
from server.kernel.errors import UnsupportedByKernel
from server.kernel.model import KernelModel
from server.kernel.plan import build_plan
from server.kernel.sequence import Buffers, settle

CONTEXTS = (0, 1, 63, 64, 65, 190, 300)
"""At 192 the parts of the context change their size (3 parts of 64): rows then stand on both sides."""


def differences_of(make_small: MakeSmall, size: str, arithmetic: Arithmetic, context: int, rows: int) -> list[float]:
    """Greatest differences between a launch and a decode of the same rows: hidden, logits."""
    small = make_small(size, arithmetic)
    ids = prompt_of(context + rows)
    at, state = small.start(ids[:context], ids[context])
    at["given"][: rows - 1] = torch.tensor(ids[context + 1 :], dtype=torch.int64)
    small.interpreter.run(build_plan(small.model, SMS, rows, 0, logits=True), at)
    hidden = small.reference.decode(ids[context:], state)
    logits = small.reference.logits(hidden)
    found = [(at["hidden"][:rows] - hidden).abs().max(), (at["logits"][:rows] - logits).abs().max()]
    accepted = at["accepted"][:rows]
    if arithmetic == EXACT:
        assert torch.equal(accepted, logits.argmax(-1))
    return [float(x) for x in found]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("size", SIZES)
def test_rows_equal_the_reference_after_any_context(make_small: MakeSmall, size: str, context: int) -> None:
    for rows in (1, 3 + context % 5):
        assert max(differences_of(make_small, size, EXACT, context, rows)) <= 1e-9


def test_every_number_of_rows_equals_the_reference(make_small: MakeSmall) -> None:
    for rows in range(1, 17):
        assert max(differences_of(make_small, "plain", EXACT, 60, rows)) <= 1e-9
    assert max(differences_of(make_small, "27b", EXACT, 60, 16)) <= 1e-9


@pytest.mark.parametrize("size", SIZES)
def test_float32_is_close_to_the_reference(make_small: MakeSmall, size: str) -> None:
    """As close as float32 forms of one model are to each other: the gated norm magnifies small outputs."""
    assert max(differences_of(make_small, size, Arithmetic(), 65, 4)) <= 2e-3


def test_eight_bit_activations_change_little(make_small: MakeSmall) -> None:
    """And a half-precision cache: a few parts in a hundred of hidden rows of size one."""
    hidden, _ = differences_of(make_small, "27b", KERNEL_LIKE, 65, 4)
    assert 1e-4 < hidden < 0.3


@pytest.mark.parametrize("path", golden_files.models(), ids=lambda path: path.stem)
def test_golden_files(path: Path) -> None:
    expected = np.load(path.with_suffix(".npz"))
    try:
        KernelModel.from_file(ModelFile.open(path))
    except UnsupportedByKernel as error:
        assert "Q2_K" in str(error) or "Q3_K" in str(error)  # noqa: PT017
        return
    small = load(path, Arithmetic(), None)
    ids = expected["ids"].tolist()
    at, _ = small.start([], ids[0])
    plan = build_plan(small.model, SMS, 10, 0, logits=True)
    parts = []
    for start in range(0, 60, 10):
        at["given"][:9] = torch.tensor(ids[start + 1 : start + 10])
        small.interpreter.run(plan, at)
        parts.append(at["logits"][:10].clone())
        settle(at, ids[start + 1 : start + 11], 10)
    found, wanted = torch.cat(parts), torch.tensor(expected["trunk_logits"][:60])
    assert (found - wanted).abs().max() <= 2e-3
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))


def test_stopping_after_an_instruction_leaves_the_later_buffers_alone(make_small: MakeSmall) -> None:
    small = make_small("plain", EXACT)
    at, _ = small.start(prompt_of(20), 7)
    small.interpreter.run(build_plan(small.model, SMS, 3, 2), at, stop_after="blk.0.in")
    assert at["z"][:3].abs().amax() > 0
    assert at["mixed.in"][1:].abs().amax() == 0, "only the MTP head's single rows have been here"
    assert at["best"].abs().amax() == 0


def test_instructions_read_and_write_only_what_the_plan_says(make_small: MakeSmall) -> None:
    """With nonsense in every buffer that it doesn't read, an instruction writes the same, and only where it says."""
    small = make_small("plain", EXACT)
    for drafts in (0, 2):
        at, _ = small.start(prompt_of(20), 7, capacity=32)
        small.cycles(at).cycle(drafts)
        for instruction in build_plan(small.model, SMS, 1 + drafts, drafts).instructions:
            reads = {access.buffer for access in instruction.reads}
            writes = {access.buffer for access in instruction.writes}
            spoilt: Buffers = {
                name: x.clone() if name in reads else torch.full_like(x, 10**6 if name in INTEGERS else torch.nan)
                for name, x in at.items()
            }
            for name in reads - writes:
                spoilt[name] = at[name].clone()
            before = {name: x.clone() for name, x in spoilt.items()}
            after = {name: x.clone() for name, x in at.items()}
            small.interpreter._run(instruction, spoilt)
            small.interpreter._run(instruction, after)
            for name in at:
                changed = ~same(spoilt[name], before[name])
                if changed.any():
                    assert name in writes, f"{instruction.name} writes {name}"
                    assert same(spoilt[name], after[name])[changed].all(), f"{instruction.name} reads what it hides"
            at = after


INTEGERS = ("counts", "accepted", "given", "tokens")


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())
