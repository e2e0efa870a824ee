"""``python -P -m bench.prompts``: how fast a GPU computes prompts, and how near to float32 on small models."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.figures import Figure, Section, Target
from bench.kernel.accuracy import KL, TOP_1, WINDOW, Agreement
from bench.kernel.arguments import POSITIONS
from bench.kernel.asked import open_model
from bench.kernel.bars import are_set_for
from bench.kernel.card import clocks, this_card
from bench.kernel.executor import made_up_state
from bench.kernel.texts import has_real_weights, windows
from bench.machine import this_machine
from bench.table import section_text
from server.cache.borders import ON_GPU
from server.executor import GPU, GPU_DTYPE
from server.gguf.errors import ModelFileError
from server.gguf.on_device import FileOnDevice
from server.gguf.reader import ModelFile
from server.kernel.errors import NoGpu, UnsupportedByKernel
from server.kernel.gpu import require_gpu
from server.kernel.model import KernelModel
from server.model.hybrid import HybridModel
from server.models_known import ModelNotFound
from server.synth.errors import SynthError

LENGTHS = (1024, 8192, 32_768, 100_000)
TAIL, BEHIND = 64, 30_000
BARS = {8192: Target("≥", 6000, reach=11_000), 100_000: Target("≥", 4000)}
TAIL_BAR = Target("≤", 60)
"""Of the 27B shapes on an H200."""
SMALL = 4 << 30
"""Bytes of a model file whose logits are compared with float32."""
PARTS = {"delta rule": ("convolve", "solve", "advance", "finish"), "attention": ("flash", "fmha", "attention")}
MATRICES = ("gemm", "cutlass", "nvjet", "cublas", "sm90_xmma")


def ids_of(count: int, vocab: int) -> list[int]:
    return [(1 + 7919 * n + n * n % 611) % vocab for n in range(count)]


def prefill(model: HybridModel, ids: Sequence[int], behind: int = 0) -> float:
    """Milliseconds, in calls as a prompt is computed."""
    state = made_up_state(model, behind) if behind else model.new_state()
    state.mtp_length = behind if state.mtp is not None else 0
    if state.mtp is not None:
        state.mtp.reserve(behind + len(ids))
    model.wait()
    began = time.perf_counter()
    for first in range(0, len(ids), ON_GPU.call):
        model.prefill(ids[first : first + ON_GPU.call], state)
    model.wait()
    return 1e3 * (time.perf_counter() - began)


def speed_section(model: HybridModel, lengths: Sequence[int], runs: int, barred: bool) -> Section:
    section = Section("Prompts of new tokens")
    vocab = model.config.vocab
    first = prefill(model, ids_of(TAIL, vocab))
    section.facts.append(
        ("the first prompt of all, with what Triton has not in its cache yet", f"{first / 1e3:.1f} s for {TAIL} tokens")
    )
    for length in lengths:
        ids = ids_of(length, vocab)
        prefill(model, ids[: 2 * ON_GPU.call])
        rates = tuple(1e3 * length / prefill(model, ids) for _ in range(runs))
        section.figures.append(Figure(f"{length} tokens", "tokens/s", rates, BARS.get(length) if barred else None))
    tail = ids_of(TAIL, vocab)
    times = tuple(prefill(model, tail, BEHIND) for _ in range(runs + 2))[2:]
    section.figures.append(Figure(f"{TAIL} tokens behind {BEHIND}", "ms", times, TAIL_BAR if barred else None))
    return section


def parts_section(model: HybridModel, length: int) -> Section:
    """Where the time of a prompt goes, by the names of the GPU's kernels."""
    section = Section(f"Of {length} tokens, by kernels")
    ids = ids_of(length, model.config.vocab)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        passed = prefill(model, ids)
    sums: dict[str, float] = defaultdict(float)
    for event in profile.key_averages():
        name = event.key.lower()
        part = next((part for part, words in PARTS.items() if any(word in name for word in words)), None)
        part = part or ("matrices" if any(word in name for word in MATRICES) else "the rest")
        milliseconds = event.self_device_time_total / 1e3
        sums[part] += milliseconds
        section.details.append({"kernel": event.key, "part": part, "ms": milliseconds, "count": event.count})
    section.details.sort(key=lambda entry: -float(entry["ms"]))
    section.figures = [Figure(part, "ms", (spent,)) for part, spent in sums.items()]
    section.facts.append(("in all", f"{passed:.0f} ms by the host's clock, with the profiler"))
    for entry in section.details[:12]:
        section.facts.append((f"{entry['ms']:.1f} ms, {entry['count']} of", entry["kernel"][:90]))
    return section


@torch.inference_mode()
def accuracy_section(file: ModelFile, text: Path | None, model: HybridModel, exact: HybridModel) -> Section:
    """Logits behind every token against float32 on the same weights; each prompt in three calls, cut anywhere."""
    section = Section("Logits against float32 on the same dequantised weights")
    prompts, source = windows(file, text, POSITIONS, WINDOW, model.config.vocab)
    agreement = Agreement()
    for ids in prompts:
        wanted = exact.logits(exact.prefill(ids, exact.new_state()))
        state = model.new_state()
        found = [model.logits(model.prefill(part, state)) for part in (ids[:130], ids[130:137], ids[137:]) if part]
        agreement.add(wanted, torch.cat(found))
    real = has_real_weights(file)
    section.figures = [
        Figure("top-1", "%", (agreement.top_1,), TOP_1 if real else None),
        Figure("mean KL", "10⁻³ nats", (agreement.mean_kl,), KL if real else None),
    ]
    section.facts = [("text", source), ("positions", f"{agreement.positions} in {len(prompts)} prompts")]
    return section


def read_arguments(words: Sequence[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m bench.prompts", description=__doc__)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file or a known name")
    parser.add_argument("--preset", default="27b", help="a synthetic model instead (default %(default)s)")
    parser.add_argument("--mix", default="q4_k_m", help="its tensor types (default %(default)s)")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="leave longer prompts out")
    parser.add_argument("--text", type=Path, help="a held-out text for accuracy (default: this repository's files)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    given = parser.parse_args(words)
    if given.json and not given.json.absolute().parent.is_dir():
        parser.error(f"{given.json} can't be written: there is no such folder")
    if given.text and not given.text.is_file():
        parser.error(f"there is no text {given.text}")
    if given.runs < 1 or given.longest < TAIL:
        parser.error(f"--runs is 1 at least, and --longest {TAIL}")
    return given


def main(words: Sequence[str] | None = None) -> int:
    options = read_arguments(words)
    command = shlex.join(["python", "-P", "-m", "bench.prompts", *(sys.argv[1:] if words is None else words)])
    print(f"{command}\n{this_machine()}", flush=True)
    sections: list[Section] = []

    def show(section: Section) -> None:
        sections.append(section)
        print("\n" + section_text(section), flush=True)
        if options.json:
            result: dict[str, Any] = {"command": command, "sections": [section.to_json() for section in sections]}
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    try:
        require_gpu()
        card = this_card()
        print(f"{card}; {clocks()}", flush=True)
        with tempfile.TemporaryDirectory(prefix="draftline-bench-") as folder:
            file = open_model(options, Path(folder))
            started = time.perf_counter()
            model = HybridModel.load(FileOnDevice(file, GPU), GPU, GPU_DTYPE, draft_rows=1)
            model.wait()
            print(f"{file.path.name}: on the GPU in 16 bits after {time.perf_counter() - started:.1f} s", flush=True)
            lengths = [length for length in LENGTHS if length <= options.longest]
            barred = are_set_for(KernelModel.from_file(file, 1), card.name)
            show(speed_section(model, lengths, options.runs, barred))
            show(parts_section(model, min(8192, options.longest)))
            if file.path.stat().st_size < SMALL:
                exact = HybridModel.load(FileOnDevice(file, GPU), GPU, torch.float32, draft_rows=1)
                show(accuracy_section(file, options.text, model, exact))
    except (
        NoGpu,
        UnsupportedByKernel,
        ModelNotFound,
        SynthError,
        ModelFileError,
        OSError,
        ValueError,
        RuntimeError,
    ) as error:
        print(f"the benchmark failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
