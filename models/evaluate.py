"""Measures a model file on held-out text: ``python -P -m models.evaluate --model FILE --heldout heldout.jsonl.xz``.

Prints bits per byte, rest-of-line exact match, how many fill-in-the-middle answers the model ends itself, and tokens
per cycle with three drafts. ``--compare`` adds the bits per byte of a second file (the unquantised one).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from models.files import File, read_files
from models.inputs import CORPUS, EXPORT, require
from models.spans import Span, cursors, repeats, rest_of_line_spans
from prompts.fim import fim_tokens, header_ids
from prompts.segments import Segment
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.tokenizer import Tokenizer
from server.request import SamplingParams
from server.speculation.decoder import Decoder
from server.speculation.depth import DepthController
from server.speculation.drafter import MtpDrafter
from server.speculation.sampling import Sampler

DEPTH = 3
ANSWER = 64
SHORT_MIDDLE = 32
SEED = 20261129


class FixedDepth(DepthController):
    """Always ``max_depth`` drafts: for figures that must not depend on the machine's speed."""

    def another(self, confidences: Sequence[float | None]) -> bool:
        return len(confidences) < self.max_depth


@dataclass
class Tally:
    """Sums that every process makes for its share; added up at the end.

    steady: of the continuations that don't repeat themselves; tells whether loops raise the tokens per cycle.
    """

    spans: int = 0
    exact: int = 0
    exact_from_indent: int = 0
    short: int = 0
    short_ended: int = 0
    continuations: int = 0
    repeating: int = 0
    cycles: int = 0
    tokens: int = 0
    steady_cycles: int = 0
    steady_tokens: int = 0
    accepted: tuple[int, ...] = (0,) * DEPTH
    nats: float = 0.0
    bytes: int = 0
    compared_nats: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        def plus(a: Any, b: Any) -> Any:
            return tuple(x + y for x, y in zip(a, b, strict=True)) if isinstance(a, tuple) else a + b

        return Tally(**{name: plus(getattr(self, name), getattr(other, name)) for name in vars(self)})


class Evaluation:
    """One loaded model and its share of the questions."""

    def __init__(self, path: Path, device: str, budget: int) -> None:
        file = ModelFile.open(path)
        self.tokenizer = Tokenizer.from_file(file)
        self.model = HybridModel.load(file, device=device)
        self.budget = budget

    def prompt(self, span: Span, *, plain: bool) -> list[int]:
        """At most ``budget`` tokens, the suffix at most a quarter of them; cut at line borders where there is room."""
        encode, suffix_budget = self.tokenizer.encode, self.budget // 4
        suffix = span.suffix[: suffix_budget * 6]
        while len(encode(suffix)) > suffix_budget:
            suffix = suffix[: suffix.rfind("\n", 0, -1) + 1 or len(suffix) // 2]
        prefix = span.prefix[-self.budget * 6 :]
        limit = self.budget - 64 - (0 if plain else len(encode(suffix)))
        while len(encode(prefix)) > limit:
            cut = prefix.find("\n", len(prefix) // 16)
            prefix = prefix[cut + 1 if cut != -1 else len(prefix) // 8 :]
        if plain:
            return header_ids(span.path, self.tokenizer) + encode(prefix)
        parts = [Segment("suffix", suffix, "current", span.path), Segment("prefix", prefix, "current", span.path)]
        return list(fim_tokens(parts, self.tokenizer).ids)

    def answer(self, ids: list[int], tally: Tally, *, ends: bool = True) -> list[int]:
        """Greedy, with drafts; cycles are counted into the tally."""
        state = self.model.new_state()
        self.model.prefill(ids, state)
        drafter = MtpDrafter(self.model, state)
        end = self.tokenizer.end_tokens if ends else frozenset()
        sampler = Sampler(SamplingParams(), ids, self.model.config.vocab)
        decoder = Decoder(self.model, state, sampler, end, drafter, FixedDepth(DEPTH))
        tokens = [decoder.first()]
        accepted = list(tally.accepted)
        while tokens[-1] not in end and len(tokens) < ANSWER:
            cycle = decoder.cycle(ANSWER - len(tokens))
            tokens += cycle.tokens
            if cycle.drafted == DEPTH:
                tally.cycles += 1
                tally.tokens += len(cycle.tokens)
                for position in range(cycle.accepted):
                    accepted[position] += 1
        tally.accepted = tuple(accepted)
        return tokens

    def rest_of_line(self, span: Span, index: int, tally: Tally) -> None:
        scratch = Tally()
        tokens = self.answer(self.prompt(span, plain=False), scratch)
        ended = tokens[-1] in self.tokenizer.end_tokens
        text = self.tokenizer.decode(tokens[:-1] if ended else tokens)
        right = text.split("\n")[0].rstrip() == span.middle.rstrip()
        tally.spans += 1
        tally.exact += right
        tally.exact_from_indent += right and index % 2 == 0
        if len(self.tokenizer.encode(span.middle)) <= SHORT_MIDDLE:
            tally.short += 1
            tally.short_ended += ended

    def continuation(self, span: Span, tally: Tally) -> None:
        before = replace(tally)
        tokens = self.answer(self.prompt(span, plain=True), tally, ends=False)
        tally.continuations += 1
        if repeats(tokens):
            tally.repeating += 1
        else:
            tally.steady_cycles += tally.cycles - before.cycles
            tally.steady_tokens += tally.tokens - before.tokens

    @torch.inference_mode()
    def nats(self, window: list[int]) -> float:
        """Sum of the negative log-likelihoods of all tokens after the first."""
        hidden = self.model.prefill(window[:-1], self.model.new_state())
        targets = torch.tensor(window[1:], device=hidden.device)
        total = 0.0
        for rows, wanted in zip(torch.split(hidden, 512), torch.split(targets, 512), strict=True):
            total += float(torch.nn.functional.cross_entropy(self.model.logits(rows).float(), wanted, reduction="sum"))
        return total


def windows(files: list[File], tokenizer: Tokenizer, length: int, count: int) -> list[list[int]]:
    """At most ``count`` random windows of all files in a row, each with an end token; windows share border tokens.

    Random ones: the first in a row can be one large file.
    """
    end = tokenizer.special("<|endoftext|>")
    assert end is not None
    stream: list[int] = [end]
    for file in files:
        stream += [*tokenizer.encode(file.text), end]
    found = [stream[i : i + length + 1] for i in range(0, len(stream) - 1, length)]
    return random.Random(SEED).sample(found, min(count, len(found)))


def work(args: argparse.Namespace, share: int) -> Tally:
    torch.set_num_threads(args.threads)
    files = list(read_files(args.heldout))
    mine = slice(share, None, args.processes)
    evaluation = Evaluation(args.model, args.device, args.budget)
    tally = Tally()
    for index, span in list(enumerate(rest_of_line_spans(files, args.spans, SEED)))[mine]:
        evaluation.rest_of_line(span, index, tally)
    for span in cursors(files, args.cursors, SEED + 1)[mine]:
        evaluation.continuation(span, tally)
    chosen = windows(files, evaluation.tokenizer, evaluation.model.config.context_length, args.windows)[mine]
    end = evaluation.tokenizer.special("<|endoftext|>")
    for window in chosen:
        tally.nats += evaluation.nats(window)
        tally.bytes += len(evaluation.tokenizer.decode([t for t in window[1:] if t != end]).encode())
    if args.compare:
        other = Evaluation(args.compare, args.device, args.budget)
        tally.compared_nats = sum(other.nats(window) for window in chosen)
    return tally


def report(tally: Tally, args: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    if tally.bytes:
        figures["bits per byte"] = tally.nats / math.log(2) / tally.bytes
    if args.compare and tally.compared_nats:
        figures["bits per byte, compared file"] = tally.compared_nats / math.log(2) / tally.bytes
        figures["quantisation costs, %"] = 100 * (tally.nats / tally.compared_nats - 1)
    if tally.spans:
        figures["rest-of-line exact match, %"] = 100 * tally.exact / tally.spans
        figures["  from the first character, %"] = 100 * tally.exact_from_indent / math.ceil(tally.spans / 2)
        figures["  from a column inside, %"] = 100 * (tally.exact - tally.exact_from_indent) / max(1, tally.spans // 2)
    if tally.short:
        figures["answers the model ends itself, %"] = 100 * tally.short_ended / tally.short
    if tally.cycles:
        figures["tokens per cycle, 3 drafts"] = tally.tokens / tally.cycles
        for position, count in enumerate(tally.accepted, start=1):
            figures[f"  accepted at position {position}, %"] = 100 * count / tally.cycles
        figures["continuations that repeat, %"] = 100 * tally.repeating / tally.continuations
    if tally.steady_cycles:
        figures["tokens per cycle, the others"] = tally.steady_tokens / tally.steady_cycles
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True, help="heldout.jsonl.xz of models.corpus")
    parser.add_argument("--compare", type=Path, help="a second model file, for bits per byte")
    parser.add_argument("--spans", type=int, default=2000)
    parser.add_argument("--cursors", type=int, default=500)
    parser.add_argument("--windows", type=int, default=200, help="windows of the context length for bits per byte")
    parser.add_argument("--budget", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    require("evaluate", [(args.model, EXPORT), (args.heldout, CORPUS), (args.compare, f"{EXPORT} --wide")])
    began = time.monotonic()
    with get_context("spawn").Pool(args.processes) as pool:
        parts = pool.starmap(work, [(args, share) for share in range(args.processes)], chunksize=1)
    tally = sum(parts, Tally())
    figures = report(tally, args)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.processes}×{args.threads} threads"
    print(f"{args.model.name} on {where}: {tally.spans} spans, {tally.continuations} continuations,")
    print(f"{tally.bytes} bytes of held-out text, prompts of at most {args.budget} tokens, greedy, seed {SEED}")
    for name, value in figures.items():
        print(f"{name:36} {value:8.4f}")
    print(f"{time.monotonic() - began:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
