"""``make bench``: how fast Draftline is on this machine with its embedded model, beside llama.cpp where installed."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engine import EngineFailed, EngineHome
from bench.figures import Section
from bench.lsp_client import LspError, NoEngine, ServerGone
from bench.machine import this_machine
from bench.material import Encoder, corpus, cut_prompts
from bench.peer import PeerFailed, comparison, run_peer
from bench.prefill import LENGTHS, Prefill, measure_prefill, new_prompts, prefill_section
from bench.speculation import ANSWER_TOKENS, Pair, is_exact, measure_pairs, speculation_section
from bench.start import help_seconds, memory_section, start_seconds, start_section
from bench.table import section_text
from bench.typed import measure_typing
from server.models_known import find_model
from server.threads.chooser import physical_cores

SHORTEST_PROMPT = 1200
"""Characters: a prompt whose continuation says something has this much before it."""


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m bench.typing", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    parser.add_argument("--quick", action="store_true", help="few repetitions: whether it runs, not how fast")
    return parser.parse_args(words)


def embedded_tokenizer(model: Path) -> Encoder:
    from server.gguf.reader import ModelFile
    from server.model.tokenizer import Tokenizer

    return Tokenizer.from_file(ModelFile.open(model))


class Benchmark:
    """The whole run; every section is printed as soon as it is there."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.model = find_model(None)
        self.encoder = embedded_tokenizer(self.model)
        self.text = corpus()
        self.sections: list[Section] = []
        self.pairs: list[Pair] = []
        self.prefills: dict[int, list[Prefill]] = {}

    def run(self) -> None:
        few = self.quick
        self._show(start_section(start_seconds(1 if few else 5), help_seconds(2 if few else 11)))
        print(f"(the typed file has {len(self.encoder.encode(self.text))} tokens)")
        self._show(measure_typing(self.text, least=5 if few else 60))
        prompts = cut_prompts(self.text, 3 if few else 24, SHORTEST_PROMPT)
        fresh = {length: new_prompts(self.encoder, self.text, length, 1 if few else 7) for length in LENGTHS}
        with EngineHome() as home, home.start() as engine:
            self.pairs = measure_pairs(engine, prompts)
            self._show(speculation_section(self.pairs))
            self.prefills = {length: measure_prefill(engine, texts) for length, texts in fresh.items()}
            self._show(prefill_section(self.prefills))
            answers = 2 + 2 * len(prompts) + sum(map(len, fresh.values()))
            self._show(memory_section(engine, answers))
            context = engine.health.context_length
        self._show(self._peer(prompts, fresh, context))

    def _peer(self, prompts: Sequence[str], fresh: dict[int, list[str]], context: int) -> Section:
        jobs = [(prompt, ANSWER_TOKENS) for prompt in prompts]
        jobs += [(prompt, 1) for texts in fresh.values() for prompt in texts]
        try:
            runs = run_peer(self.model, jobs, threads=physical_cores(), context=context)
        except PeerFailed as error:
            return Section("Against llama.cpp", facts=[("not measured", str(error))])
        theirs = {"decode": [run.decode_rate for run in runs[: len(prompts)]]}
        ours = {
            "decode, speculation on": [pair.on.rate for pair in self.pairs],
            "decode, speculation off": [pair.off.rate for pair in self.pairs],
        }
        rest = iter(runs[len(prompts) :])
        for length, texts in fresh.items():
            theirs[f"prefill {length}"] = [next(rest).prefill_rate for _ in texts]
            ours[f"prefill {length}"] = [run.rate for run in self.prefills[length]]
        section = comparison(ours, theirs)
        section.facts.append(("threads", str(physical_cores())))
        return section

    def _show(self, section: Section) -> None:
        self.sections.append(section)
        print("\n" + section_text(section), flush=True)

    def to_json(self) -> dict[str, Any]:
        return {"parity": is_exact(self.pairs), "sections": [section.to_json() for section in self.sections]}


def main() -> int:
    arguments = read_arguments()
    command = shlex.join(["python", "-P", "-m", "bench.typing", *sys.argv[1:]])
    machine = this_machine()
    print(f"{command}\n{machine}", flush=True)
    try:
        benchmark = Benchmark(quick=arguments.quick)
        print(f"model {benchmark.model.name}, {benchmark.model.stat().st_size / 1e6:.1f} MB")
        benchmark.run()
    except (EngineFailed, NoEngine, ServerGone, LspError, TimeoutError, ValueError, OSError) as error:
        print(f"the benchmark failed: {error}", file=sys.stderr)
        return 1
    parity = is_exact(benchmark.pairs)
    print(f"\nparity (greedy answers with speculation equal those without): {'yes' if parity else 'NO'}")
    if arguments.json:
        result = {"command": command, "machine": machine.to_json(), **benchmark.to_json()}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if parity else 1


if __name__ == "__main__":
    sys.exit(main())
