"""``python -P -m bench.first_token``: the time to the first token against the prompt's length.

Cold, with a little more at the end, and after an edit near the beginning, in the middle and near the end, each time on
what the engine kept of the first prompt. In the engine's own process: clients add a millisecond.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.figures import Figure, Section
from bench.kernel.asked import open_model
from bench.kernel.texts import windows
from bench.machine import this_machine
from bench.table import section_text
from server.engine import Engine
from server.executor import Choice, choose
from server.gguf.errors import ModelFileError
from server.gguf.reader import ModelFile
from server.kernel.errors import KernelFault
from server.models_known import ModelNotFound
from server.request import Counters, FinishedEvent, GenerationRequest, TextEvent
from server.synth.errors import SynthError

LENGTHS = (64, 1000, 4000, 8000, 16_000, 32_000, 64_000, 100_000)
LONGEST_ON_CPU = 8000
CHANGED = 4
"""Tokens that an edit replaces, or that follow at the end."""
ANSWER = 24
"""Tokens of an answer, which is compared with a fresh engine's."""
WARM_UP = 3000
"""Tokens of a prompt before all others: what is done once isn't measured."""
APART = 997
"""Tokens between the beginnings of two runs' prompts."""
COLD = "cold"


@dataclass(frozen=True)
class Asked:
    """A prompt of about ``length`` tokens, and what came of it."""

    length: int
    variant: str
    ids: list[int]
    text: str
    counters: Counters


def variants(ids: list[int], vocab: int) -> Iterator[tuple[str, list[int]]]:
    """Prompts that are asked for one after the other; all but the first find it kept."""
    yield COLD, ids
    yield f"{CHANGED} tokens more", ids + ids[:CHANGED]
    for percent in (90, 50, 10):
        at = len(ids) * percent // 100
        changed = [(token + 1) % vocab for token in ids[at : at + CHANGED]]
        yield f"an edit at {percent} %", ids[:at] + changed + ids[at + CHANGED :]


def answer(engine: Engine, ids: list[int]) -> tuple[str, Counters]:
    """Greedy. Raises ValueError when it ends with an error."""
    text, finished = "", None
    for event in engine.submit(GenerationRequest(ids=ids, max_tokens=ANSWER)):
        if isinstance(event, TextEvent):
            text += event.text
        elif isinstance(event, FinishedEvent):
            finished = event
    if finished is None or finished.reason == "error":
        raise ValueError(f"a request failed: {finished.detail if finished else 'it has no end'}")
    return text, finished.counters


def measure(engine: Engine, tokens: Sequence[int], lengths: Iterable[int], runs: int) -> Iterator[list[Asked]]:
    """All answers of one length after the other. tokens: what prompts are made of, repeated where they are too few.

    Raises ValueError.
    """
    vocab = engine.model.config.vocab
    begin = 0
    for length in lengths:
        asked = []
        for _ in range(runs):
            begin += APART
            ids = [tokens[(begin + n) % len(tokens)] for n in range(length)]
            ids[0] = begin // APART % vocab  # nothing is like another run's
            asked += [Asked(length, name, prompt, *answer(engine, prompt)) for name, prompt in variants(ids, vocab)]
        yield asked


def different(fresh: Engine, asked: Iterable[Asked]) -> list[str]:
    """Which of the answers are not those of an engine that keeps nothing. Raises ValueError."""
    return [f"{a.length} tokens, {a.variant}" for a in asked if answer(fresh, a.ids)[0] != a.text]


def length_section(asked: Sequence[Asked]) -> Section:
    section = Section(f"Time to the first token, prompts of {asked[0].length} tokens")
    for variant in dict.fromkeys(a.variant for a in asked):
        those = [a for a in asked if a.variant == variant]
        section.figures.append(Figure(variant, "ms", tuple(a.counters.ttft_ms for a in those)))
        least, most = (pick(a.counters.prefilled for a in those) for pick in (min, max))
        section.facts.append((f"computed, {variant}", f"{least}" if least == most else f"{least} to {most}"))
    return section


def read_arguments(words: Sequence[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m bench.first_token", description=__doc__)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file or a known name")
    parser.add_argument("--preset", default="27b", help="a synthetic model instead (default %(default)s)")
    parser.add_argument("--mix", default="q4_k_m", help="its tensor types (default %(default)s)")
    parser.add_argument("--longest", type=int, help=f"leave longer prompts out (on a CPU: {LONGEST_ON_CPU})")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    given = parser.parse_args(words)
    if given.json and not given.json.absolute().parent.is_dir():
        parser.error(f"{given.json} can't be written: there is no such folder")
    if given.runs < 1 or (given.longest is not None and given.longest < LENGTHS[0]):
        parser.error(f"--runs is 1 at least, and --longest {LENGTHS[0]}")
    return given


def run(file: ModelFile, choice: Choice, options: Namespace) -> tuple[list[Section], list[str]]:
    """-> the figures, and the answers that are not a fresh engine's. Raises ValueError, ModelFileError, KernelFault."""
    engine = Engine(file.path, choice=choice)
    longest = options.longest or (LONGEST_ON_CPU if choice.kernel is None else LENGTHS[-1])
    lengths = [n for n in LENGTHS if n <= min(longest, engine.context_length - ANSWER - CHANGED)]
    need = lengths[-1] + APART
    (tokens,), source = windows(file, None, need, need, engine.model.config.vocab)
    print(f"{engine.executor}\ntext: {source}", flush=True)
    answer(engine, tokens[-min(WARM_UP, lengths[-1]) :])
    sections, first = [], []
    for asked in measure(engine, tokens, lengths, options.runs):
        sections.append(length_section(asked))
        print("\n" + section_text(sections[-1]), flush=True)
        first += asked[: len(asked) // options.runs]
    engine.close()
    del engine
    gc.collect()
    if choice.kernel is not None:
        torch.cuda.empty_cache()
    fresh = Engine(file.path, choice=choice, cache_bytes=0)
    wrong = different(fresh, [a for a in first if a.variant != COLD])
    fresh.close()
    return sections, wrong


def main(words: Sequence[str] | None = None) -> int:
    options = read_arguments(words)
    command = shlex.join(["python", "-P", "-m", "bench.first_token", *(sys.argv[1:] if words is None else words)])
    machine = this_machine()
    print(f"{command}\n{machine}", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="draftline-bench-") as folder:
            file = open_model(options, Path(folder))
            sections, wrong = run(file, choose(file, make=True), options)
    except (ModelNotFound, SynthError, ModelFileError, KernelFault, OSError, ValueError) as error:
        print(f"the benchmark failed: {error}", file=sys.stderr)
        return 1
    said = f"NO: {', '.join(wrong)}" if wrong else "yes"
    print(f"\nparity (each answer of the first run equals that of an engine that keeps nothing): {said}")
    if options.json:
        result = {
            "command": command,
            "machine": machine.to_json(),
            "parity": not wrong,
            "sections": [section.to_json() for section in sections],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
