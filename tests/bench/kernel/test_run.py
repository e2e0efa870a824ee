"""The benchmark as a whole on a kernel that is no GPU's: what it prints, in which order, and what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interpreted_kernel import CARD, InterpretedKernel
from small_models import Small

import bench.kernel.__main__ as command
from bench.kernel import executor
from bench.kernel.__main__ import Benchmark, main
from bench.kernel.arguments import read_arguments
from bench.kernel.executor import executor_section
from server.kernel import gpu
from server.kernel.errors import KernelFault

CPU = torch.device("cpu")


def benchmark(small: Small, kernel: InterpretedKernel, *words: str) -> Benchmark:
    options = read_arguments(["--quick", "--rows", "1,3", "--drafts", "2", "--contexts", "20", *words])
    options.tokens, options.launches = 20, 1

    def timer(start):  # type: ignore[no-untyped-def]
        start()
        return 2.5

    return Benchmark(options, small.file, kernel, timer, lambda launches: (1e9,) * launches, CARD, CPU)


def test_parity_comes_before_any_figure(
    small: Small, kernel: InterpretedKernel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "DTYPE", torch.float32)
    monkeypatch.setattr(command, "USUAL", 20)
    run = benchmark(small, kernel)
    saved: list[int] = []
    run.save = lambda: saved.append(len(run.sections))
    run.run()
    shown = capsys.readouterr().out
    order = ["parity: yes", "read stream of the packed weights", "T=3 n=2", "Figures", "The torch executor"]
    assert [shown.index(words) for words in order] == sorted(shown.index(words) for words in order)
    assert saved == [1, 2, 3, 4, 5], "what has been measured is saved at once"
    found = json.loads(json.dumps(run.to_json()))
    assert found["parity"] is True
    (launches,) = [s for s in found["sections"] if s["title"].startswith("Launches")]
    assert [(one["rows"], one["drafts"], one["context"]) for one in launches["details"]] == [
        (1, 0, 20), (3, 0, 20), (3, 2, 20),
    ]  # fmt: skip
    assert launches["details"][0]["share_of_stream"] == pytest.approx(launches["details"][0]["weights_bytes"] / 2.5e6)


def test_accuracy_takes_the_place_of_times(
    small: Small, kernel: InterpretedKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    run = benchmark(small, kernel, "--accuracy", "--positions", "20")
    run.run()
    shown = capsys.readouterr().out
    assert shown.index("parity: yes") < shown.index("mean KL, the kernel")
    assert "text: random tokens, as the weights are random" in shown
    assert "stream" not in shown


def test_the_torch_executor_is_left_out_where_it_does_not_fit(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "fits", lambda *args, **names: (False, "60 GB needed, 50 GB free"))
    section = executor_section(small.file, CPU, 20, (1,), 1)
    assert section.figures == []
    assert section.facts == [("not measured", "the weights don't fit beside the kernel's: 60 GB needed, 50 GB free")]


def test_the_torch_executor_decodes_from_the_same_place_again_and_again(small: Small) -> None:
    section = executor_section(small.file, CPU, 30, (1, 5), 2)
    assert [(figure.name, len(figure.samples)) for figure in section.figures] == [("T=1", 2), ("T=5", 2)]


# ---------------------------------------------------------------------------------------------------- command line


def test_lists_have_numbers_and_ranges() -> None:
    found = read_arguments(["--rows", "1,5,8-10", "--drafts", "", "--contexts", "100000,0"])
    assert (found.rows, found.drafts, found.contexts) == ([1, 5, 8, 9, 10], [], [0, 100_000])
    found = read_arguments([])
    assert (found.preset, found.mix, found.launches, found.tokens) == ("27b", "q4_k_m", 20, 256)
    assert (found.rows, found.drafts) == (list(range(1, 17)), list(range(1, 8)))
    assert found.contexts == [0, 4096, 30_000, 100_000]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--rows", "0"], "these are 1 to 16"),
        (["--rows", "17"], "these are 1 to 16"),
        (["--drafts", "8"], "these are 1 to 7"),
        (["--rows", "x"], "'x' is neither a number nor a range like 1-8"),
        (["m.gguf", "--preset", "27b"], "give a MODEL or a --preset with its --mix, not both"),
        (["--json", "/nowhere/f.json"], "/nowhere/f.json can't be written: there is no such folder"),
        (["--accuracy", "/nowhere.py"], "there is no text /nowhere.py"),
        (["--positions", "0"], "--draft-rows and --positions are 1 at least"),
    ],
)
def test_wrong_arguments_are_explained(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_arguments(words)
    assert ended.value.code == 2
    assert answer in capsys.readouterr().err


def test_without_a_gpu_it_is_one_line(tmp_path: Path) -> None:
    program = "import sys, torch; torch.cuda.is_available = lambda: False\nfrom bench.kernel.__main__ import main\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program + "sys.exit(main(['--quick']))"],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("the benchmark failed: the decode kernel needs an NVIDIA GPU, and there is none: ")
    assert done.stderr.count("\n") == 1


def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "require_gpu", lambda: None)
    monkeypatch.setattr(command, "this_card", lambda: CARD)


@pytest.mark.parametrize(
    ("words", "answer"),
    [(["nowhere.gguf"], "there is no model file"), (["--preset", "3b"], "there is no preset '3b'")],
)
def test_models_that_do_not_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], answer: str
) -> None:
    with_gpu(monkeypatch)
    assert main(words) == 2
    assert answer in capsys.readouterr().err


def test_a_fault_leaves_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*arguments: object, **names: object) -> None:
        raise KernelFault("it broke off")

    with_gpu(monkeypatch)
    monkeypatch.setattr(gpu.GpuKernel, "from_file", broken)
    out = tmp_path / "out.json"
    assert main(["--preset", "tiny", "--mix", "q8_0", "--json", str(out)]) == 1
    assert "the benchmark failed: it broke off" in capsys.readouterr().err
    found = json.loads(out.read_text())
    assert found["error"] == "it broke off"
    assert found["card"]["name"] == "Made-up GPU"
    assert found["command"].startswith("python -P -m bench.kernel --preset tiny")


def test_what_torch_runs_into_leaves_the_kernels_figures(
    small: Small, kernel: InterpretedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory\nand more")

    monkeypatch.setattr(command, "executor_section", broken)
    run = benchmark(small, kernel)
    run._times()
    assert run.sections[-1].facts == [("not measured", "CUDA out of memory")]
    assert run.sections[0].title == "The ceiling, in this run"
