"""`draftline synth` as a process: what it says, and that it leaves nothing behind when it is ended."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_process import REAL_COMMAND

from server.synth.mixes import MIXES, find_mix
from server.synth.presets import PRESETS, find_preset


def synth(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*REAL_COMMAND, "synth", *arguments], capture_output=True, text=True, timeout=110)


def test_a_file_is_written_and_described(tmp_path: Path) -> None:
    out = tmp_path / "tiny.gguf"
    done = synth("--preset", "tiny", "--mix", "q8_0", "--seed", "3", str(out))
    assert done.returncode == 0, done.stderr
    assert f"{out}: 71 tensors, " in done.stdout
    assert "random" in done.stdout
    assert "(tiny, mix q8_0, seed 3)" in done.stderr
    again = synth("--preset", "tiny", str(out))
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == f"draftline: {out} exists already, and is left alone. Remove it, or name another file.\n"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("--preset", "3b"), "there is no preset '3b'; presets: tiny, 0.8b, 2b, 4b, 9b, 27b"),
        (("--preset", "2b", "--mix", "q5"), "there is no mix 'q5'; mixes: " + ", ".join(MIXES)),
        (
            ("--preset", "2b", "--mix", "qwen3.5-27b-q4_k_m"),
            "the mix qwen3.5-27b-q4_k_m describes files of the preset 27b, not of 2b; mixes for 2b: f16, q8_0, q4_k_m",
        ),
    ],
)
def test_names_that_do_not_fit_are_one_line(tmp_path: Path, arguments: tuple[str, ...], answer: str) -> None:
    done = synth(*arguments, str(tmp_path / "m.gguf"))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"draftline: {answer}\n")
    assert list(tmp_path.iterdir()) == []


def test_names_are_taken_in_any_case_of_letters() -> None:
    assert all(find_preset(name.upper()) is preset for name, preset in PRESETS.items())
    assert all(find_mix(name.upper()) is mix for name, mix in MIXES.items())


def test_help_names_every_preset_and_mix() -> None:
    shown = " ".join(synth("--help").stdout.split())
    assert all(name in shown for name in (*PRESETS, *MIXES))


def test_ended_in_the_middle_it_leaves_nothing_behind(tmp_path: Path) -> None:
    running = subprocess.Popen([*REAL_COMMAND, "synth", "--preset", "0.8b", str(tmp_path / "m.gguf")], text=True)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
        running.terminate()
        assert running.wait(60) == 128 + 15
    finally:
        running.kill()
        running.wait()
    assert list(tmp_path.iterdir()) == []


def test_shapes_and_types_are_known_without_torch() -> None:
    program = "import sys, server.synth.mixes, server.synth.presets, server.synth.target; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
