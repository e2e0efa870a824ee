"""The checker finds every kind of fault that is planted in a plan, and names it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from server.kernel import check as checker
from server.kernel.check import check
from server.kernel.instructions import Access, Instruction
from server.kernel.model import preset_model
from server.kernel.plan import Plan, build_plan
from server.kernel.tiles import Range
from server.synth.mixes import find_mix
from server.synth.presets import find_preset


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(preset_model(find_preset("tiny"), find_mix("q4_k_m"), 512), 24, 4, 3)


def edited(plan: Plan, name: str, edit: Callable[[Instruction], Instruction | None]) -> Plan:
    """The plan with one instruction edited or (None) left out."""
    assert any(i.name == name for i in plan.instructions)
    out = [edit(i) if i.name == name else i for i in plan.instructions]
    return replace(plan, instructions=tuple(i for i in out if i is not None))


def rules(plan: Plan) -> set[tuple[str, str]]:
    return {(finding.rule, finding.instruction) for finding in check(plan)}


def test_the_plan_itself_is_faultless(plan: Plan) -> None:
    assert check(plan) == []


def test_swapped_instructions(plan: Plan) -> None:
    names = [i.name for i in plan.instructions]
    at = names.index("blk.1.delta")
    swapped = list(plan.instructions)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    found = rules(replace(plan, instructions=tuple(swapped)))
    assert ("order", "blk.1.out") in found
    assert ("stale", "blk.1.out") in found


@pytest.mark.parametrize("name", ["blk.0.delta", "blk.3.reduce", "mtp.1.input", "embed", "verify", "blk.2.down"])
def test_a_missing_barrier(plan: Plan, name: str) -> None:
    assert rules(edited(plan, name, lambda i: replace(i, waits=()))) == {("order", name)}


def test_a_barrier_that_waits_for_too_little(plan: Plan) -> None:
    """A read is ordered, but what it overwrites may still be read."""
    early = plan.instructions[[i.name for i in plan.instructions].index("blk.1.gate_up")].waits
    found = check(edited(plan, "blk.1.down", lambda i: replace(i, waits=early)))
    assert {(f.rule, f.instruction) for f in found} == {("order", "blk.1.down")}
    assert any("overwrites x.in while blk.1.gate_up may still read it" in f.text for f in found)


def test_a_tile_left_out_and_a_tile_done_twice(plan: Plan) -> None:
    def shifted(by: int) -> Callable[[Instruction], Instruction]:
        def edit(i: Instruction) -> Instruction:
            share = i.ranges[5]
            return replace(i, ranges=(*i.ranges[:5], Range(share.start + by, share.stop), *i.ranges[6:]))

        return edit

    for by, words in ((1, "no SM does item"), (-1, "again")):
        found = [f for f in check(edited(plan, "blk.1.down", shifted(by))) if f.rule == "coverage"]
        assert [f.instruction for f in found] == ["blk.1.down"]
        assert words in found[0].text


def test_a_phase_left_out(plan: Plan) -> None:
    found = rules(edited(plan, "blk.2.gate_up", lambda i: None))
    assert ("streamed", "plan") in found
    assert ("stale", "blk.2.down") in found


def test_a_matrix_streamed_twice(plan: Plan) -> None:
    phase = next(i for i in plan.instructions if i.name == "blk.0.in")
    doubled = replace(phase, name="blk.0.again", waits=phase.waits)
    at = plan.instructions.index(phase)
    instructions = (*plan.instructions[:at], doubled, *plan.instructions[at:])
    found = check(replace(plan, instructions=instructions))
    assert any(f.rule == "streamed" and "blk.0.attn_qkv.weight are streamed 2 times" in f.text for f in found)


def test_a_stale_buffer(plan: Plan) -> None:
    """The input of the layer before: the right buffer with another layer's norm."""

    def edit(i: Instruction) -> Instruction:
        old = Access("x.in", "blk.1.post_attention_norm.weight")
        assert old in i.reads
        return replace(i, reads=tuple(replace(a, value="blk.0.attn_norm.weight") if a == old else a for a in i.reads))

    assert rules(edited(plan, "blk.1.gate_up", edit)) == {("stale", "blk.1.gate_up")}


def test_a_buffer_that_nothing_wrote(plan: Plan) -> None:
    def edit(i: Instruction) -> Instruction:
        return replace(i, writes=tuple(a for a in i.writes if a.buffer != "x.squares"))

    found = rules(edited(plan, "mtp.0.project", edit))
    assert ("unwritten", "mtp.0.in") in found


def test_a_launch_that_leaves_another_value_than_the_next_one_needs(plan: Plan) -> None:
    def edit(i: Instruction) -> Instruction:
        return replace(i, writes=tuple(replace(a, value="x") if a.buffer == "counts" else a for a in i.writes))

    assert rules(edited(plan, "verify", edit)) == {("stale", "end")}


def test_an_sm_that_reads_what_another_one_writes(plan: Plan) -> None:
    def edit(i: Instruction) -> Instruction:
        return replace(i, reads=tuple(replace(a, share="all") if a.buffer == "x" else a for a in i.reads))

    assert rules(edited(plan, "blk.0.out", edit)) == {("own", "blk.0.out")}


def test_an_unknown_buffer(plan: Plan) -> None:
    found = rules(edited(plan, "verify", lambda i: replace(i, writes=(*i.writes, Access("y", "y")))))
    assert found == {("unknown", "verify")}


def test_an_unbalanced_phase(plan: Plan) -> None:
    def edit(i: Instruction) -> Instruction:
        a, b = i.ranges[3], i.ranges[4]
        middle = a.stop + 2
        return replace(i, ranges=(*i.ranges[:3], Range(a.start, middle), Range(middle, b.stop), *i.ranges[5:]))

    assert rules(edited(plan, "lm_head", edit)) == {("balance", "lm_head")}


def test_a_short_ring(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "RING", 19)
    assert {rule for rule, _ in rules(plan)} == {"ring"}
