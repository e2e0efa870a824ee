"""Parity and accuracy: that they hold for a sound kernel, and that faults of one are seen."""

import pytest
import torch
from interpreted_kernel import InterpretedKernel
from small_models import Small

from bench.kernel.acceptance import acceptance_section
from bench.kernel.accuracy import Agreement, OnePlane, accuracy_section, compare, interpreted, load_reference
from bench.kernel.parity import check_parity
from bench.kernel.texts import windows
from server.gguf.reader import ModelFile
from server.kernel.arithmetic import Arithmetic
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers, count, set_counts
from server.kernel.weights import Weights
from server.models_known import find_model

CPU = torch.device("cpu")


def test_parity_of_a_sound_kernel(kernel: InterpretedKernel) -> None:
    parity = check_parity(kernel, 24)
    assert parity.holds
    assert parity.same is True
    assert parity.tokens == 24
    assert ("parity", "yes") in parity.lines()
    rows = {(rows, drafts) for rows, drafts, _ in kernel.found}
    assert {(1, 0), (5, 4), (8, 0), (16, 0)} <= rows


class ForgetfulKernel(InterpretedKernel):
    """Takes one more row for accepted than it has, now and then."""

    def run(self, plan: Plan, at: Buffers) -> None:
        super().run(plan, at)
        if plan.rows > 1 and 1 < (kept := count(at, "fold")) < plan.rows:
            set_counts(at, length=count(at, "length") + 1, fold=kept + 1, behind=kept + 1)


class DraftingKernel(InterpretedKernel):
    """With drafts of its own it gives other tokens."""

    def run(self, plan: Plan, at: Buffers) -> None:
        super().run(plan, at)
        if plan.drafts:
            at["accepted"][0] += 1


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (ForgetfulKernel, ("with an oracle's drafts", "WRONG accepted counts")),
        (DraftingKernel, ("with 4 drafts of the MTP head", "OTHER TOKENS")),
    ],
)
def test_faults_are_seen(small: Small, kind: type[InterpretedKernel], line: tuple[str, str]) -> None:
    parity = check_parity(kind(small, small.model, small.interpreter.sms, []), 24)
    assert not parity.holds
    assert ("parity", "NO") in parity.lines()
    assert any(name == line[0] and text.startswith(line[1]) for name, text in parity.lines())


# ---------------------------------------------------------------------------------------------------- accuracy


def test_agreement_counts_positions_and_divergence() -> None:
    agreement = Agreement()
    agreement.add(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 9.0]]))
    assert agreement.positions == 2
    assert agreement.top_1 == 50
    p = torch.tensor([9.0, 0.0], dtype=torch.float64).softmax(-1)
    assert agreement.mean_kl == pytest.approx(1e3 * float(p[0] * 9 - p[1] * 9) / 2)


def test_a_kernel_without_rounding_has_the_references_logits(small: Small, kernel: InterpretedKernel) -> None:
    """Windows that end inside a launch, and several of them in the same buffers."""
    parts, source = windows(small.file, None, 75, 40, small.model.config.vocab)
    assert [len(part) for part in parts] == [40, 35]
    assert source == "random tokens, as the weights are random"
    reference, words = load_reference(small.file, CPU)
    assert words == "HybridModel, float32"
    section = accuracy_section(small.file, kernel, reference, parts, True, CPU)
    found = {figure.name: figure for figure in section.figures}
    assert found["top-1, the kernel"].median == 100
    assert 0 <= found["mean KL, the kernel"].median < 1e-3
    assert found["mean KL, emulated: 8 bits, one scale for each 32"].median > 0.01
    assert found["mean KL, the kernel"].met
    assert ("positions", "75 in 2 sequences") in section.facts
    assert [plan for plan in kernel.found if plan[0] == 3], "the last launch of a window has what is left"


def test_where_the_reference_does_not_fit_the_plan_in_torch_takes_its_place(
    small: Small, kernel: InterpretedKernel
) -> None:
    parts = [list(range(5, 30))]
    section = accuracy_section(small.file, kernel, None, parts, False, CPU)
    found = {figure.name: figure for figure in section.figures}
    assert found["top-1, the kernel"].median == 100
    assert found["mean KL, the kernel"].median < 1e-3
    assert ("too short", "the bars are for 5000 positions") in section.facts


def test_one_plane_is_coarser_than_two(small: Small, kernel: InterpretedKernel) -> None:
    weights = Weights(small.file, small.model, torch.float32, keep=False)
    exact = interpreted(kernel, weights, Arithmetic())
    others = {"one": OnePlane(int8=True), "two": Arithmetic(int8=True)}
    ids = [(37 * i * i + 11) % 500 for i in range(48)]
    found = compare([ids], exact, {name: interpreted(kernel, weights, kind) for name, kind in others.items()})
    assert found["one"].mean_kl > found["two"].mean_kl > 0


def test_texts_are_cut_into_windows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = ModelFile.open(find_model(None))
    text = tmp_path / "t.py"
    text.write_text("x = 1\n" * 200)
    parts, source = windows(file, text, 100, 40, 16_384)
    assert [len(part) for part in parts] == [40, 40, 20]
    assert source == str(text)
    parts, source = windows(file, None, 600, 512, 16_384)
    assert sum(map(len, parts)) == 600
    assert source.startswith("this repository's own Python files")
    text.write_text("")
    with pytest.raises(ValueError, match="there is no text"):
        windows(file, text, 100, 40, 16_384)


def test_acceptance_counts_every_position(small: Small, kernel: InterpretedKernel) -> None:
    parts = [[(37 * i * i + 11) % 500 for i in range(300)]]
    section = acceptance_section(small.reference, kernel, parts, 2, prompts=1)
    found = {figure.name: figure for figure in section.figures}
    assert 1 <= found["tokens per cycle"].median <= 3
    shares = [float(share.rstrip("%")) / 100 for share in dict(section.facts)["accepted by position"].split(", ")]
    assert len(shares) == 2
    assert 1 + sum(shares) == pytest.approx(found["tokens per cycle"].median, abs=0.02)
