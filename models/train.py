"""Trains the embedded model: ``python -P -m models.train --data DIR --out DIR --minutes N``.

Runs by the wall clock, decay included, so that a slower run still ends with a usable model. Writes ``weights.pt``
(bfloat16, names as in the file, ``ssm_a`` as log A) every few minutes and at the end, and a JSON line per report to
``log.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.batches import Batches
from models.delta_rule import check_against_torch, chunk_delta_rule, library_delta_rule
from models.errors import TrainingError
from models.files import read_files
from models.generate import greedy
from models.inputs import CORPUS, EXPORT, TOKENIZER, TRAIN, require
from models.loops import CONTINUATION, PROMPT, OwnLoops, looping_share, unlikelihood
from models.network import REHEARSAL, Dimensions, Network, Weights, imported, initial_weights
from models.optimiser import Muon, adamw
from models.tokenizer_file import byte_lengths, load_tokenizer
from models.windows import END
from prompts.fim import marker
from server.gguf.reader import ModelFile
from server.model.tokenizer import Tokenizer

DEPTH_WEIGHTS = (0.3, 0.15, 0.1)
"""Loss weights of one, two and three chained steps of the prediction head."""
UNLIKELIHOOD = 1.0
"""Weight of the unlikelihood of the model's own loops."""
PROMPTS, TAKEN = 32, 3
"""Prompts of a round of continuations, and loops of a step, for each window of a batch."""


def learning_rate(progress: float, step: int, peak: float, decay: float, warmup: int = 100) -> float:
    """Warm-up by steps, flat, then linear to 2 % over the last ``decay`` of the run (by ``progress`` in 0..1)."""
    rate = peak * min(1.0, (step + 1) / warmup)
    return rate * max(0.02, min(1.0, (1 - progress) / decay))


def target_weights(ids: torch.Tensor, middle: int, end: int) -> torch.Tensor:
    """ids [B, T] -> loss weights [B, T] of the tokens that follow them: 5 in a middle and for its end, otherwise 1.

    ``middle`` and ``end`` are the markers' ids. Middles are 2 % of the tokens, and what the model is for.
    """
    at = torch.arange(ids.shape[1], device=ids.device)
    opened = torch.where(ids == middle, at, -1).cummax(1).values
    closed = torch.where(ids == end, at, -1).cummax(1).values
    return 1.0 + 4.0 * (opened > closed).float()


def read_weights(path: Path) -> Weights:
    """Weights to go on from, in training form: a model file, or a trainer's ``weights.pt``. Raises ModelFileError."""
    if path.suffix != ".gguf":
        weights: Weights = torch.load(path, map_location="cpu")
        return weights
    file = ModelFile.open(path)
    return imported({name: file.tensor(name) for name in file.tensors})


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        parts = [args.data / name for name in args.train]
        self.batches = Batches(parts, args.data / "tokenizer.json", args.length, args.batch, args.seed, args.workers)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = True
        tokenizer = load_tokenizer(args.data / "tokenizer.json")
        self.middle, self.end = marker(tokenizer, "<|fim_middle|>"), marker(tokenizer, END)
        self.dims = replace(REHEARSAL if args.tiny else Dimensions(), vocab=len(tokenizer))
        delta_rule = chunk_delta_rule
        if self.device == "cuda":
            delta_rule = library_delta_rule()
            worst = check_against_torch(delta_rule, self.dims.linear_heads, self.dims.linear_dim)
            self.report(event="delta rule checked", worst_relative_error=worst)
        self.prompt = min(PROMPT, args.length)
        longest = max(args.length, self.prompt + CONTINUATION)
        self.network = Network(self.dims, delta_rule, self.device, longest, args.compile)
        start = read_weights(args.start) if args.start else initial_weights(self.dims, args.seed)
        self.weights: Weights = {n: w.float().to(self.device).requires_grad_() for n, w in start.items()}
        self.muon, self.adam = Muon(self.weights), adamw(self.weights, args.rate)
        self.byte_length = torch.tensor(byte_lengths(args.data / "tokenizer.json"), device=self.device)
        self.held_out = self.held_out_batches(tokenizer)
        self.loops: OwnLoops | None = None
        if args.against_loops:
            self.loops = OwnLoops(self.generate, PROMPTS * args.batch, self.prompt, self.end, args.seed)

    def report(self, **values: Any) -> None:
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()})
        print(line, flush=True)
        with (self.args.out / "log.jsonl").open("a") as log:
            log.write(line + "\n")

    def held_out_batches(self, tokenizer: Tokenizer) -> list[torch.Tensor]:
        """Batches of plain held-out text, whole files only, the same every time."""
        files = list(read_files(self.args.data / "heldout.jsonl.xz"))
        random.Random(1).shuffle(files)
        stream: list[int] = []
        size = (self.args.length + 1) * self.args.batch
        for file in files:
            stream += [*tokenizer.encode(file.text), self.end]
            if len(stream) >= size * self.args.held_out:
                break
        count = len(stream) // size
        if not count:
            raise TrainingError(f"the held-out text has {len(stream)} tokens, and one batch takes {size}")
        return [torch.tensor(stream[i * size : (i + 1) * size]).view(self.args.batch, -1) for i in range(count)]

    def cast(self) -> Weights:
        """The weights as one step uses them: matrices in bfloat16 on a GPU, the rest in float32."""
        if self.device == "cpu":
            return self.weights
        return {n: w if w.ndim < 2 or n.endswith("conv1d.weight") else w.bfloat16() for n, w in self.weights.items()}

    def generate(self, prompts: torch.Tensor) -> torch.Tensor:
        """Greedy continuations by the weights of the moment."""
        with torch.no_grad():
            w = self.cast()
        return greedy(self.network, w, prompts.to(self.device), CONTINUATION)

    def unlearn(self, count: int) -> torch.Tensor:
        """Adds the gradients of ``count`` of the model's own loops -> their unlikelihood, before its weight.

        A pool of fewer counts in proportion, an empty one nothing: the last loops to go aren't worth what pressing on
        them would cost.
        """
        if self.loops is None or (taken := self.loops.take(count)) is None:
            return torch.zeros((), device=self.device)
        ids, mask = (x.to(self.device) for x in taken)
        w = self.cast()
        hidden = self.network.hidden(w, ids)[:, self.prompt - 1 : -1]
        mean = unlikelihood(hidden, w["token_embd.weight"], ids[:, self.prompt :], mask)
        loss = min(1.0, len(self.loops.ids) / count) * mean
        torch.autograd.backward(UNLIKELIHOOD * loss)
        return loss.detach()

    def step(
        self, array: NDArray[np.int16], progress: float, step: int
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """One update -> the total loss, its parts (trunk, one for each depth of drafts), and the loops' unlikelihood.

        With weights to start from the prediction head makes three drafts from the first step.
        """
        if self.loops:
            self.loops.see(array)
        window = torch.from_numpy(array)
        ids = window[:, :-1].to(self.device, torch.long)
        targets = window[:, 1:].to(self.device, torch.long)
        weight = target_weights(ids, self.middle, self.end)
        w = self.cast()
        embedding = w["token_embd.weight"]
        hidden = self.network.hidden(w, ids)
        losses = [self.network.loss(hidden, embedding, targets, weight, 1e-4)]
        total = losses[0]
        draft = hidden
        depths = 3 if self.args.start or progress >= 0.7 else 2 if progress >= 0.35 else 1
        for depth in range(depths):
            draft = self.network.draft_hidden(w, ids, draft)
            losses.append(self.network.loss(draft, embedding, targets, weight, 0.0))
            total = total + DEPTH_WEIGHTS[depth] * losses[-1]
        torch.autograd.backward(total)
        # After the other losses, whose activations are gone by now.
        loops_lost = self.unlearn(TAKEN * len(array))
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0, foreach=True)
        rate = learning_rate(progress, step, self.args.rate, self.args.decay)
        self.muon.step(rate)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        for parameter in self.weights.values():
            parameter.grad = None
        total = total.detach() + UNLIKELIHOOD * loops_lost
        return total, [loss.detach() for loss in losses], loops_lost

    def evaluate(self) -> dict[str, float]:
        """Bits per byte on held-out text, and how often each depth's draft equals the trunk's own choice.

        Against loops also the share of held-out continuations that loop.
        Gradients stay on (and unused): without them every compiled function would be compiled a second time.
        """
        nats = torch.zeros((), device=self.device)
        size = torch.zeros((), device=self.device)
        agree = torch.zeros(3, device=self.device)
        rows = 0
        w = self.cast()
        for window in self.held_out:
            ids, targets = window[:, :-1].to(self.device), window[:, 1:].to(self.device)
            hidden = self.network.hidden(w, ids)
            ones = torch.ones_like(targets, dtype=torch.float32)
            nats += self.network.loss(hidden, w["token_embd.weight"], targets, ones, 0.0).detach() * targets.numel()
            size += self.byte_length[targets].sum()
            draft, chosen, ok = hidden, self.argmax(hidden, w), torch.ones_like(targets, dtype=torch.bool)
            for depth in range(3):
                draft = self.network.draft_hidden(w, ids, draft)
                # The chain that ends in row j had its previous draft in row j - 1.
                before = torch.nn.functional.pad(ok[:, :-1], (1, 0)) if depth else ok
                ok = before & (self.argmax(draft, w) == chosen)
                agree[depth] += ok.sum()
            rows += targets.numel()
        result = {"bits_per_byte": float(nats / size / 0.6931471805599453)}
        result |= {f"draft_{d + 1}": float(agree[d] / rows) for d in range(3)}
        if self.loops:
            result["loops"] = looping_share(self.generate(self.held_out_prompts()))
        return result

    def held_out_prompts(self) -> torch.Tensor:
        """As many prompts as a round has, at even distances in the held-out text."""
        text = torch.cat([window.flatten() for window in self.held_out])
        starts = torch.linspace(0, len(text) - self.prompt, PROMPTS * self.args.batch).long()
        return text[starts[:, None] + torch.arange(self.prompt)]

    @torch.no_grad()
    def argmax(self, hidden: torch.Tensor, w: Weights) -> torch.Tensor:
        return torch.stack([(row @ w["token_embd.weight"].T).argmax(-1) for row in hidden])

    def save(self) -> None:
        """Written beside and renamed, so that a reader never sees half a file."""
        partial = self.args.out / "weights.pt.partial"
        torch.save(
            {n: (w.detach().bfloat16() if w.ndim > 1 else w.detach()).cpu() for n, w in self.weights.items()},
            partial,
        )
        partial.rename(self.args.out / "weights.pt")

    def run(self) -> None:
        seconds = self.args.minutes * 60
        started = warm = saved = time.monotonic()
        tokens = step = 0
        reported = (started, 0)
        for array in self.batches:
            now = time.monotonic()
            if step == 3:
                # Compilation and tuning are over; they do not count as training time.
                warm = now
                if self.args.until:
                    seconds = min(seconds, started + self.args.until - 20 - now)
            progress = (now - warm) / seconds if step > 3 else 0.0
            if progress >= 1:
                break
            total, losses, loops_lost = self.step(array, progress, step)
            tokens += array.size
            step += 1
            if step in (1, 2, 4, 8, 16) or step % 50 == 0:
                if not torch.isfinite(total):
                    raise TrainingError(f"the loss is {float(total)} at step {step}; the last snapshot is kept")
                now = time.monotonic()
                pace = (tokens - reported[1]) / (now - reported[0])
                reported = (now, tokens)
                self.report(
                    step=step,
                    tokens=tokens,
                    seconds=now - started,
                    progress=progress,
                    tokens_per_second=pace,
                    losses=[round(float(loss), 3) for loss in losses],
                    **({"loops": self.loops.share, "unlikelihood": float(loops_lost)} if self.loops else {}),
                )
            if now - saved > self.args.every * 60:
                self.report(event="snapshot", step=step, **self.evaluate())
                self.save()
                saved = time.monotonic()
        self.report(event="end", step=step, tokens=tokens, **self.evaluate())
        self.save()
        (self.args.out / "done").touch()


def main() -> int:
    """Command line of the trainer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the corpus parts and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--train", nargs="+", default=["train-00.jsonl.xz"], help="parts; all but the first may arrive later"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="training time, compilation excluded")
    parser.add_argument(
        "--until", type=float, default=0.0, help="hard end in seconds after the start, everything included"
    )
    parser.add_argument("--every", type=float, default=3.0, help="minutes between snapshots")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=2.5e-3)
    parser.add_argument("--decay", type=float, default=0.4, help="share of the time, its last, in which the rate falls")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=4, help="batches of held-out text per evaluation")
    parser.add_argument("--start", type=Path, help="weights to go on from: weights.pt or a model file")
    parser.add_argument(
        "--against-loops", action="store_true", help="also unlearn the loops that the model makes itself"
    )
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--tiny", action="store_true", help="a small network, to rehearse on a CPU")
    args = parser.parse_args()
    tokenizer = args.data / "tokenizer.json"
    maker = TRAIN if args.start is not None and args.start.suffix == ".pt" else EXPORT
    made = [(args.data / args.train[0], CORPUS), (args.data / "heldout.jsonl.xz", CORPUS), (tokenizer, TOKENIZER)]
    require("train", [*made, (args.start, maker)])
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        Trainer(args).run()
    except TrainingError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
