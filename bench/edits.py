"""``python -P -m bench.edits``: how fast an edit's answer is with drafts copied from the old text.

The edits are those of this repository's own history. Their new text is forced: it is the answer whatever the model
would say, and all that a model computes for it is computed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.figures import Figure, Section, Target, percentile
from bench.forced import Machinery, on_cpu, on_gpu
from bench.kernel.asked import open_model
from bench.kernel.card import clocks, this_card
from bench.kernel.texts import has_real_weights
from bench.machine import this_machine
from bench.regions import RULE, Region, read_regions
from bench.replay.history import NoHistory, git
from bench.table import section_text
from server.gguf.errors import ModelFileError
from server.gguf.reader import ModelFile
from server.kernel.errors import KernelCompileError, KernelFault, NoGpu, UnsupportedByKernel
from server.kernel.gpu import require_gpu
from server.model.state import SequenceState
from server.model.tokenizer import Tokenizer
from server.models_known import ModelNotFound, find_model
from server.speculation.copies import Copies, CopyTimes
from server.speculation.decoder import Cycle, Decoder
from server.speculation.depth import DepthController
from server.speculation.launches import LaunchDecoder
from server.synth.errors import SynthError

ROOT = Path(__file__).parents[1]
EDITS, WARM_UPS, PARITY = 40, 3, 8
PROMPT = 768
"""Tokens before an answer: the old text, with what stands above it where it is shorter."""
LINES_ABOVE = 100
MOST = 1500
"""Tokens of an old or a new text; what is behind them is left out."""
GREEDY_TOKENS = 48
CONTEXT = 4096
"""Tokens of a prompt and its answer at most."""
SPEEDUP = Target("≥", 3)
MODES = ("copies", "head", "plain")


@dataclass(frozen=True)
class Edit:
    """In tokens. prompt: it ends with the old text."""

    prompt: list[int]
    old: list[int]
    new: list[int]


@dataclass(frozen=True)
class Run:
    """One answer in one mode; seconds of its cycles, without the prompt and the first token, which comes from it."""

    tokens: int
    seconds: float
    cycles: int
    drafted: int
    accepted: int
    copied: int
    copied_accepted: int

    @property
    def rate(self) -> float:
        return (self.tokens - 1) / self.seconds


class Benchmark:
    """All edits in all modes, each mode with what it has learnt in the edits before, as an engine has."""

    def __init__(self, machinery: Machinery, edits: Sequence[Edit]) -> None:
        """edits: the first WARM_UPS don't count."""
        self._machinery = machinery
        self._edits = edits
        self._times = CopyTimes()
        self._controllers = {
            mode: DepthController(max_depth=0) if mode == "plain" else DepthController() for mode in MODES
        }

    def run(self) -> list[dict[str, Run]]:
        """Which mode comes first changes from edit to edit."""
        found = []
        for number, edit in enumerate(self._edits):
            state = self._prefilled(edit)
            kept = state.checkpoint()
            runs = {}
            for turn in range(len(MODES)):
                mode = MODES[(number + turn) % len(MODES)]
                runs[mode] = self._run(state, edit, mode)
                state.restore(kept)
            found.append(runs)
        return found[WARM_UPS:]

    def parity(self, count: int) -> tuple[int, int]:
        """Greedy answers, not forced, with the old text as prediction and with the answer itself, against none
        -> how many are the same tokens, and of how many."""
        same = total = 0
        for edit in self._edits[:count]:
            state = self._prefilled(edit)
            kept = state.checkpoint()

            def greedy(old: Sequence[int] | None, state: SequenceState = state) -> list[int]:
                copies = None if old is None else Copies(old, CopyTimes())
                controller = self._controllers["plain" if old is None else "copies"]
                decoder = self._machinery.decoder(state, None, controller, copies)
                return _complete(decoder, GREEDY_TOKENS)[0]

            wanted = greedy(None)
            for old in (edit.old, wanted):
                state.restore(kept)
                same += greedy(old) == wanted
                total += 1
        return same, total

    def _prefilled(self, edit: Edit) -> SequenceState:
        state = self._machinery.model.new_state()
        self._machinery.model.prefill(edit.prompt, state)
        self._machinery.model.wait()
        return state

    def _run(self, state: SequenceState, edit: Edit, mode: str) -> Run:
        copies = Copies(edit.old, self._times) if mode == "copies" else None
        decoder = self._machinery.decoder(state, edit.new, self._controllers[mode], copies)
        tokens, cycles, seconds = _complete(decoder, len(edit.new))
        if tokens != edit.new:
            raise ValueError("a forced answer came out as another one: the benchmark is wrong")
        copied = [cycle for cycle in cycles if cycle.copied]
        return Run(
            len(tokens),
            seconds,
            len(cycles),
            sum(cycle.drafted for cycle in cycles),
            sum(cycle.accepted for cycle in cycles),
            sum(cycle.drafted for cycle in copied),
            sum(cycle.accepted for cycle in copied),
        )


def _complete(decoder: Decoder | LaunchDecoder, length: int) -> tuple[list[int], list[Cycle], float]:
    """-> tokens, cycles, and the seconds of all cycles."""
    tokens, cycles = [decoder.first()], list[Cycle]()
    seconds = 0.0
    while len(tokens) < length:
        began = time.perf_counter()
        cycles.append(decoder.cycle(length - len(tokens)))
        seconds += time.perf_counter() - began
        tokens += cycles[-1].tokens
    decoder.finish()
    return tokens, cycles, seconds


def in_tokens(region: Region, tokenizer: Tokenizer) -> Edit:
    old, new = (tokenizer.encode("\n".join(lines) + "\n")[:MOST] for lines in (region.old, region.new))
    above = tokenizer.encode("\n".join([*region.above[-LINES_ABOVE:], ""])) if region.above else []
    return Edit([*above, *old][-max(PROMPT, len(old)) :], old, new)


def regions_section(regions: Sequence[Region], edits: Sequence[Edit], head: str) -> Section:
    """What is answered."""
    section = Section("The edits")
    section.figures = [
        Figure("lines of the old text", "lines", tuple(len(region.old) for region in regions)),
        Figure("lines of the new text that are new", "%", tuple(100 * r.added / len(r.new) for r in regions)),
        Figure("tokens of the new text", "tokens", tuple(len(edit.new) for edit in edits)),
        Figure("tokens of the prompt", "tokens", tuple(len(edit.prompt) for edit in edits)),
    ]
    section.facts = [
        ("rule", RULE),
        ("history", f"up to {head}, {len({region.path for region in regions})} files"),
    ]
    return section


def speed_section(found: Sequence[dict[str, Run]]) -> Section:
    """Rates of the modes on the same edits."""

    def rates(mode: str) -> tuple[float, ...]:
        return tuple(runs[mode].rate for runs in found)

    def over(mode: str) -> tuple[float, ...]:
        return tuple(runs["copies"].rate / runs[mode].rate for runs in found)

    def per_cycle(mode: str) -> tuple[float, ...]:
        return tuple((runs[mode].tokens - 1) / runs[mode].cycles for runs in found)

    section = Section("Forced answers: copies of the old text, the MTP head's drafts alone, and no drafts")
    section.figures = [
        Figure("ratio of the rates, copies over plain, edit by edit", "", over("plain"), SPEEDUP),
        Figure("ratio of the rates, copies over the head, edit by edit", "", over("head")),
        Figure("decode, copies", "tokens/s", rates("copies")),
        Figure("decode, the head's drafts", "tokens/s", rates("head")),
        Figure("decode, plain", "tokens/s", rates("plain")),
        Figure("tokens per cycle, copies", "tokens", per_cycle("copies")),
        Figure("tokens per cycle, the head's drafts", "tokens", per_cycle("head")),
    ]
    copied, accepted = (sum(getattr(runs["copies"], name) for runs in found) for name in ("copied", "copied_accepted"))
    if copied:
        section.facts.append(("accepted", f"{accepted} of {copied} copied drafts ({accepted / copied:.0%})"))
    seconds = {mode: sum(runs[mode].seconds for runs in found) for mode in MODES}
    section.facts.append(("ratio of the whole run, copies over plain", f"{seconds['plain'] / seconds['copies']:.2f}"))
    section.facts.append(("slowest edit against plain", f"{percentile(over('plain'), 0):.2f}"))
    section.details = [{mode: asdict(run) for mode, run in runs.items()} for runs in found]
    return section


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m bench.edits", description=__doc__)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="with --gpu: a GGUF file or a known name")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, without MODEL a synthetic one")
    parser.add_argument("--preset", default="27b", help="of the synthetic model (default %(default)s)")
    parser.add_argument("--mix", default="q4_k_m", help="its tensor types (default %(default)s)")
    parser.add_argument("--edits", type=int, default=EDITS, help="how many (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    given = parser.parse_args(words)
    if given.json and not given.json.absolute().parent.is_dir():
        parser.error(f"{given.json} can't be written: there is no such folder")
    if given.model and not given.gpu:
        parser.error("on the CPU it is the embedded model: a MODEL needs --gpu")
    if given.edits < 1:
        parser.error("--edits is 1 at least")
    return given


def main(words: Sequence[str] | None = None) -> int:
    options = read_arguments(words)
    command = shlex.join(["python", "-P", "-m", "bench.edits", *(sys.argv[1:] if words is None else words)])
    print(f"{command}\n{this_machine()}", flush=True)
    sections: list[Section] = []

    def show(section: Section) -> None:
        sections.append(section)
        print("\n" + section_text(section), flush=True)
        if options.json:
            result: dict[str, Any] = {"command": command, "sections": [section.to_json() for section in sections]}
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    try:
        if options.gpu:
            require_gpu()
        regions = read_regions(ROOT, WARM_UPS + options.edits)
        embedded = ModelFile.open(find_model(None))
        tokenizer = Tokenizer.from_file(embedded)
        with tempfile.TemporaryDirectory(prefix="draftline-bench-") as folder, torch.inference_mode():
            if options.gpu:
                print(f"{this_card()}; {clocks()}", flush=True)
                file = open_model(options, Path(folder))
                tokenizer = Tokenizer.from_file(file) if has_real_weights(file) else tokenizer
                machinery: Machinery = on_gpu(file, CONTEXT)
            else:
                machinery = on_cpu(embedded, tokenizer)
            edits = [in_tokens(region, tokenizer) for region in regions]
            head = git(ROOT, "rev-parse", "--short", "HEAD").strip()
            show(regions_section(regions[WARM_UPS:], edits[WARM_UPS:], head))
            benchmark = Benchmark(machinery, edits)
            same, total = benchmark.parity(PARITY)
            show(
                Section(
                    "Parity", facts=[("greedy answers with a prediction equal to those without", f"{same} of {total}")]
                )
            )
            show(speed_section(benchmark.run()))
    except (
        NoHistory,
        NoGpu,
        UnsupportedByKernel,
        KernelCompileError,
        KernelFault,
        ModelNotFound,
        SynthError,
        ModelFileError,
        OSError,
        ValueError,
        RuntimeError,
    ) as error:
        print(f"the benchmark failed: {error}", file=sys.stderr)
        return 1
    return 0 if same == total else 1


if __name__ == "__main__":
    sys.exit(main())
