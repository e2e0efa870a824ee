"""``python -P -m bench.kernel``: parity first, then the decode kernel's times beside a read stream and the torch
executor in the same run; with ``--accuracy`` its logits beside float32."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.figures import Figure, Section
from bench.kernel.acceptance import acceptance_section
from bench.kernel.accuracy import WINDOW, accuracy_section, load_reference
from bench.kernel.arguments import POSITIONS, RANDOM_POSITIONS, read_arguments
from bench.kernel.asked import open_model
from bench.kernel.bars import USUAL, are_set_for, bars_section
from bench.kernel.card import Card, clocks, this_card
from bench.kernel.executor import executor_section
from bench.kernel.launches import Kernel, Timer, Timing, cases, event_timer, launch_table, measure
from bench.kernel.parity import Parity, check_parity
from bench.kernel.stream import measure_stream
from bench.kernel.texts import has_real_weights, windows
from bench.machine import this_machine
from bench.table import section_text
from server.gguf.errors import ModelFileError
from server.gguf.reader import ModelFile
from server.kernel.errors import KernelCompileError, KernelFault, NoGpu, UnsupportedByKernel
from server.kernel.gpu import GpuKernel, require_gpu
from server.kernel.model import KernelModel
from server.models_known import ModelNotFound
from server.synth.errors import SynthError

EXECUTOR_ROWS = (1, 5)
PROMPTS = 8


@dataclass
class Benchmark:
    """A run on one kernel; every section is printed as soon as it is there, and `save` is called with it.

    stream: launches -> bytes per second of each.
    """

    options: Namespace
    file: ModelFile
    kernel: Kernel
    timer: Timer
    stream: Callable[[int], tuple[float, ...]]
    card: Card
    device: torch.device
    save: Callable[[], None] = lambda: None
    sections: list[Section] = field(default_factory=list)
    parity: Parity | None = None

    def run(self) -> None:
        self.parity = check_parity(self.kernel, self.options.tokens)
        self._show(Section("Parity, before any figure", facts=self.parity.lines()))
        if self.options.accuracy is None:
            self._times()
        else:
            self._accuracy()

    def _times(self) -> None:
        o = self.options
        rates = self.stream(o.launches)
        ceiling = Figure("read stream of the packed weights", "GB/s", tuple(rate / 1e9 for rate in rates))
        stream = ceiling.median * 1e9
        self._show(Section("The ceiling, in this run", [ceiling]))
        drafts = o.drafts if self.kernel.model.config.mtp else []
        timings: list[Timing] = []
        section = Section("Launches: ms median [p10 p90] and the weights' share of the stream")
        if o.drafts and not drafts:
            section.facts.append(("n", "no drafts: the model has no MTP head"))
        wanted = cases(o.rows, drafts, o.contexts)
        for timing in measure(self.kernel, wanted, self.timer, o.launches):
            timings.append(timing)
            section.details.append(timing.to_json(stream))
            if len(timings) == len(wanted) or wanted[len(timings)].context != timing.case.context:
                print(f"(context {timing.case.context} is measured)", file=sys.stderr, flush=True)
        section.facts.append(("clocks right after", clocks()))
        self._show(section, launch_table(timings, stream))
        self._show(bars_section(timings, stream, are_set_for(self.kernel.model, self.card.name)))
        try:
            self._show(executor_section(self.file, self.device, USUAL, EXECUTOR_ROWS, o.launches))
        except RuntimeError as error:  # the kernel's own figures stand, whatever torch has run into
            self._show(Section("The torch executor", facts=[("not measured", str(error).splitlines()[0])]))

    def _accuracy(self) -> None:
        o = self.options
        real = has_real_weights(self.file)
        positions = o.positions or (POSITIONS if real else RANDOM_POSITIONS)
        text = Path(o.accuracy) if o.accuracy else None
        parts, source = windows(self.file, text, positions, WINDOW, self.kernel.model.config.vocab)
        reference, words = load_reference(self.file, self.device)
        section = accuracy_section(self.file, self.kernel, reference, parts, not real, self.device)
        section.facts = [("text", source), ("reference", words), *section.facts]
        self._show(section)
        if real and reference is not None and self.kernel.model.config.mtp:
            for drafts in o.drafts:
                self._show(acceptance_section(reference, self.kernel, parts, drafts, PROMPTS))

    def _show(self, section: Section, table: Sequence[str] = ()) -> None:
        self.sections.append(section)
        title, *rest = section_text(section).splitlines()
        print("\n" + "\n".join([title, *(f"  {line}" for line in table), *rest]), flush=True)
        self.save()

    def to_json(self) -> dict[str, Any]:
        parity = None if self.parity is None else self.parity.holds
        return {"parity": parity, "sections": [section.to_json() for section in self.sections]}


def main(words: Sequence[str] | None = None) -> int:
    options = read_arguments(words)
    given = sys.argv[1:] if words is None else words
    result: dict[str, Any] = {"command": shlex.join(["python", "-P", "-m", "bench.kernel", *given])}
    machine = this_machine()
    benchmark: Benchmark | None = None

    def save() -> None:
        """After every section: what has been measured stays, whatever happens next."""
        if options.json:
            found = result | (benchmark.to_json() if benchmark else {})
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    print(f"{result['command']}\n{machine}", flush=True)
    try:
        require_gpu()
        card, before = this_card(), clocks()
        print(f"{card}; {before}", flush=True)
        result |= {"machine": machine.to_json(), "card": card.to_json(), "clocks_before": before}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="draftline-bench-")))
            file = open_model(options, folder)
            result["model"] = {"name": file.path.name, "bytes": file.path.stat().st_size}
            started = time.perf_counter()
            kernel = GpuKernel.from_file(file, KernelModel.from_file(file, options.draft_rows))
            kernel.wait()
            print(f"{file.path.name}: on the GPU after {time.perf_counter() - started:.1f} s", flush=True)
            started = time.perf_counter()
            reports = kernel.prepare()
            result["kernel"] = {tiles: report.__dict__ for tiles, report in reports.items()}
            print(f"kernel: ready after {time.perf_counter() - started:.1f} s, {reports[1]}", flush=True)
            timer = event_timer(kernel.wait)
            matrices = list(kernel.weights.matrices.values())

            def stream(launches: int) -> tuple[float, ...]:
                return measure_stream(matrices, kernel.arch, kernel.sms, timer, launches)

            benchmark = Benchmark(options, file, kernel, timer, stream, card, kernel.device, save)
            benchmark.run()
    except (ModelNotFound, SynthError) as error:
        return _failed(error, 2)
    except torch.OutOfMemoryError as error:
        result["error"] = str(error)
        save()
        return _failed(f"the GPU's memory is too small, or others use it: {str(error).splitlines()[0]}", 1)
    except (
        NoGpu, UnsupportedByKernel, KernelCompileError, KernelFault, ModelFileError, OSError, ValueError, RuntimeError
    ) as error:  # fmt: skip
        result["error"] = str(error)
        save()
        return _failed(error, 1)
    save()
    return 0 if benchmark.parity is not None and benchmark.parity.holds else 1


def _failed(error: Exception | str, code: int) -> int:
    print(f"the benchmark failed: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
