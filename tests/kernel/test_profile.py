"""A launch's time by kind of instruction: figures of made-up time stamps, the table, the bars, and the command."""

import json
import sys
from pathlib import Path

import pytest
import torch

from server.kernel import gpu, profile_command
from server.kernel.errors import KernelCompileError, KernelFault, NoGpu
from server.kernel.gpu import require_gpu
from server.kernel.instructions import WeightPhase
from server.kernel.model import preset_model
from server.kernel.plan import Plan, build_plan
from server.kernel.profile import SIGNS, phase_figures, picture, table
from server.synth.mixes import find_mix
from server.synth.presets import PRESETS

SMS = 4
START = 1_790_000_000_000_000_000
"""Nanoseconds of a real clock: larger than what floating point holds exactly."""


def plan_of(rows: int = 3, drafts: int = 2) -> Plan:
    return build_plan(preset_model(PRESETS["tiny"], find_mix("q8_0"), 100), SMS, rows, drafts)


def stamps(plan: Plan, waiting: int = 100, computing: int = 2000, handing_on: int = 50) -> torch.Tensor:
    """Every SM takes these nanoseconds for each instruction, and 10 more for each SM before it to compute."""
    times = torch.zeros(len(plan.instructions), SMS, 6, dtype=torch.int64)
    now = START
    for index, instruction in enumerate(plan.instructions):
        streams = isinstance(instruction, WeightPhase)
        go = now if index == 0 else now + waiting
        for sm in range(SMS):
            computed = go + computing + 10 * sm
            # What has no matrices has no stamps for them.
            fed, multiplied = (go + 300, computed - 400) if streams else (0, 0)
            times[index, sm] = torch.tensor([now, go, fed, multiplied, computed, computed + handing_on])
        now = int(times[index, :, 5].max())
    return times


def test_an_instructions_time_falls_into_six_parts() -> None:
    plan = plan_of()
    figures = {(p.part, p.kind): p for p in phase_figures(plan, [stamps(plan)], 0)}
    gate_up = figures["trunk", "GateUp ffn_gate ffn_up"]
    assert gate_up.count == 4
    assert gate_up.waiting_us == pytest.approx(0.1)
    assert gate_up.input_us == pytest.approx(0.3)
    assert gate_up.multiplying_us == pytest.approx(1.315)  # the mean of 0, 10, 20, 30 more
    assert gate_up.finishing_us == pytest.approx(0.4)
    delta_rule = figures["trunk", "DeltaRule"]
    assert delta_rule.input_us == delta_rule.multiplying_us == 0
    assert delta_rule.finishing_us == pytest.approx(2.015)
    assert gate_up.handing_on_us == pytest.approx(0.05)
    assert gate_up.skew_us == pytest.approx(0.015)
    assert gate_up.each_us == pytest.approx(0.1 + 2.03 + 0.05)


def test_times_add_up_to_the_launchs() -> None:
    plan = plan_of()
    times = stamps(plan)
    wanted = int(times[-1, :, 5].max() - times[0, :, 1].min()) / 1e3
    assert sum(p.total_us for p in phase_figures(plan, [times], 0)) == pytest.approx(wanted)
    assert sum(p.count for p in phase_figures(plan, [times], 0)) == len(plan.instructions)


def test_several_launches_are_averaged() -> None:
    plan = plan_of()
    first, second = (phase_figures(plan, [stamps(plan, computing=n)], 0) for n in (1000, 3000))
    both = phase_figures(plan, [stamps(plan, computing=1000), stamps(plan, computing=3000)], 0)
    for a, b, mean in zip(first, second, both, strict=True):
        assert mean.each_us == pytest.approx((a.each_us + b.each_us) / 2)


def test_bytes_are_those_of_the_file_and_grow_with_the_context() -> None:
    plan = plan_of()
    short, long = ({p.kind: p for p in phase_figures(plan, [stamps(plan)], n)} for n in (0, 5000))
    config = plan.model.config
    keys_and_values = 4 * config.kv_heads * config.head_dim * 5000 / 1e6  # two of two bytes
    assert long["Attention"].megabytes - short["Attention"].megabytes == pytest.approx(keys_and_values)
    gate_up = next(
        p for p in phase_figures(plan, [stamps(plan)], 0) if p.kind.startswith("GateUp") and p.part == "trunk"
    )
    q8_0 = 34 / 32
    assert gate_up.megabytes * 1e6 == 4 * 2 * config.ffn * config.hidden * q8_0
    assert short["Verify"].gigabytes_per_second < 1


def test_stamps_of_another_plan_are_refused() -> None:
    with pytest.raises(ValueError, match="for a plan of"):
        phase_figures(plan_of(), [stamps(plan_of(drafts=0))], 0)
    with pytest.raises(ValueError, match="for a plan of"):
        phase_figures(plan_of(), [], 0)


def test_the_table_is_aligned_and_ends_with_the_launch() -> None:
    plan = plan_of()
    phases = phase_figures(plan, [stamps(plan)], 0)
    lines = table(phases)
    assert len(lines) == len(phases) + 2
    column = lines[0].index("count") + len("count")
    assert all(line[:column].split()[-1].isdigit() for line in lines[1:])
    assert lines[-1].split()[:2] == ["launch", str(len(plan.instructions))]


def test_bars_are_as_long_as_the_times() -> None:
    plan = plan_of()
    phases = phase_figures(plan, [stamps(plan)], 0)
    bars = [sum(line.count(sign) for sign in SIGNS.values()) for line in picture(phases)]
    longest = max(p.total_us for p in phases)
    assert max(bars) == 40
    for bar, phase in zip(bars, phases, strict=True):
        assert abs(bar - 40 * phase.total_us / longest) <= 0.51
    assert all("#" in line for line, bar in zip(picture(phases), bars, strict=True) if bar > 3)


# ---------------------------------------------------------------------------------------------------- the command


class TimedKernel:
    """Gives made-up stamps, and remembers what it was asked."""

    def __init__(self, plan: Plan) -> None:
        self.model = plan.model
        self.counts: list[list[int]] = []

    def new_buffers(self, capacity: int) -> dict[str, torch.Tensor]:
        from server.kernel.device import DeviceBuffers

        return DeviceBuffers(self.model, SMS, capacity)

    def times(self, plan: Plan, at: dict[str, torch.Tensor]) -> torch.Tensor:
        self.counts.append(at["counts"].tolist())
        at["counts"].add_(1)  # as a launch moves them on
        return stamps(plan)


def test_every_launch_begins_at_the_same_place() -> None:
    plan = plan_of()
    kernel = TimedKernel(plan)
    launches = profile_command.measure(kernel, plan, 50)  # type: ignore[arg-type]
    assert len(launches) == profile_command.LAUNCHES
    assert kernel.counts == [[50, 3, 3, 0]] * (profile_command.WARM_UPS + profile_command.LAUNCHES)


def with_gpu(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    """As if there were a GPU of four SMs, and a kernel for it (or an error when it is made)."""

    def from_file(file: object, model: object, device: str, *, timed: bool) -> TimedKernel:
        assert timed
        if error is not None:
            raise error
        return TimedKernel(build_plan(model, SMS, 3, 2))  # type: ignore[arg-type]

    class Properties:
        multi_processor_count = SMS

    monkeypatch.setattr(gpu, "require_gpu", lambda: None)
    monkeypatch.setattr(gpu.GpuKernel, "from_file", from_file)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Made-up GPU")


def test_the_command_prints_the_table_and_writes_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with_gpu(monkeypatch)
    assert profile_command.run(None, 3, 2, 100, str(tmp_path / "p.json")) == 0
    shown = capsys.readouterr().out
    assert "draftline-python-56m.gguf on Made-up GPU: 3 rows, 2 drafts, 100 positions" in shown
    assert "waiting .  input :  multiplying *" in shown
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["total_us"] == pytest.approx(sum(phase["total_us"] for phase in found["phases"]))
    assert (found["rows"], found["drafts"], found["context"], found["sms"]) == (3, 2, 100, SMS)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KernelFault("it broke off"), "it broke off"),
        (KernelCompileError("no compiler"), "no compiler"),
        (torch.OutOfMemoryError("CUDA out of memory"), "the GPU's memory is too small for draftline-python-56m.gguf"),
    ],
)
def test_what_goes_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    with_gpu(monkeypatch, error)
    assert profile_command.run(None, 3, 2, 100, None) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"draftline: {line}")
    assert shown.err.count("\n") == 1


def test_places_that_can_not_be_written_are_found_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert profile_command.run(None, 3, 2, 100, "/nowhere/p.json") == 2
    assert "/nowhere/p.json can't be written: there is no such folder" in capsys.readouterr().err
    assert profile_command.run("nowhere.gguf", 3, 2, 100, None) == 1
    assert "there is no model file" in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert profile_command.run(None, 5, 4, 0, None) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("draftline: the decode kernel needs an NVIDIA GPU, and there is none: ")


def test_a_gpu_without_the_bindings_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(KernelCompileError, match=r"pip install 'draftline\[gpu\]'"):
        require_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoGpu):
        require_gpu()
