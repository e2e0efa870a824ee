"""The memory plan's figures against those of the architecture, and the command that prints a plan."""

from pathlib import Path

import pytest

from server.kernel.buffers import buffers
from server.kernel.memory import memory_plan
from server.kernel.model import preset_model
from server.kernel.show import main
from server.synth.mixes import find_mix
from server.synth.presets import PRESETS, find_preset

STATES = {"0.8b": (18, 12_288), "2b": (18, 12_288), "4b": (48, 32_768), "9b": (48, 32_768), "27b": (144, 65_536)}
"""MiB of the recurrent memories; bytes of the trunk's half-precision keys and values for a position."""


@pytest.mark.parametrize("name", STATES)
def test_states_have_the_known_sizes(name: str) -> None:
    model = preset_model(find_preset(name), find_mix("q4_k_m"), 32_768)
    memory = memory_plan(model, 132, 1000)
    mebibytes, per_position = STATES[name]
    block = 4 * model.config.kv_heads * model.config.head_dim
    assert memory.memories == mebibytes << 20
    assert memory.caches == 1000 * (per_position + block)


def test_27b_as_tiles_is_little_larger_than_its_file() -> None:
    model = preset_model(find_preset("27b"), find_mix("q4_k_m"), 32_768)
    memory = memory_plan(model, 132, 4096)
    matrices = sum(model.file_bytes(name) for name in model.matrices()) + model.file_bytes(model.output, 32_768)
    assert matrices < memory.weights + memory.embedding < 1.03 * matrices


@pytest.mark.parametrize("name", PRESETS)
def test_buffers_are_the_same_for_every_launch_and_grow_with_the_context_alone(name: str) -> None:
    model = preset_model(find_preset(name), find_mix("q4_k_m"), 1000)
    short, long = buffers(model, 132, 100), buffers(model, 132, 300)
    assert short.keys() == long.keys()
    grown = {name for name in short if short[name] != long[name]}
    assert grown == {name for name in short if name.endswith((".k", ".v"))}


def test_show_prints_a_plan_and_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", "tiny", "--rows", "3", "--drafts", "2", "--sms", "20"]) == 0
    out = capsys.readouterr().out
    assert "checked: no finding" in out
    assert "| trunk | DeltaRule | 3 |" in out
    assert main(["--preset", "28b"]) == 2
    assert "there is no preset '28b'" in capsys.readouterr().err
    assert main(["--preset", "tiny", "--rows", "17"]) == 2


def test_the_documents_figures_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--preset", "27b", "--rows", "5", "--drafts", "4", "--context", "4096"])
    document = (Path(__file__).parents[2] / "docs" / "kernel.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| draft |", "| trunk |"))]
    assert len(lines) == 21
    assert set(lines) <= set(document)
