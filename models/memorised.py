"""How much a model writes out of its memory: ``python -P -m models.memorised --model FILE --heldout FILE --text DIR``.

Continues held-out files greedily for 64 tokens and looks the results up in the training text, runs of blanks counted as
one. What the files really go on with is looked up too: some passages (licence headers, common idioms) everybody writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from models.evaluate import ANSWER, SEED, Evaluation, Tally
from models.files import read_files
from models.inputs import CORPUS, EXPORT, require
from models.spans import cursors

BLOCK = 50
"""Characters of a block of training text; every copy of 2 · BLOCK - 1 characters holds a whole one."""
LONG = 150
"""Characters from which a copy counts as long."""


def normalised(text: str) -> str:
    """The text with every run of blanks and line ends as one blank."""
    return " ".join(text.split())


class Passages:
    """The longest stretch that each of some passages shares with the texts looked at so far.

    ``longest``: characters, after normalising, one entry a passage; a stretch under 2 · BLOCK - 1 may be overlooked.
    ``sources``: where it stands. Memory goes with the passages, not with the texts.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        self.passages = [normalised(passage) for passage in passages]
        self.longest = [0] * len(passages)
        self.sources = [""] * len(passages)
        self._places: dict[str, list[tuple[int, int]]] = {}
        for which, passage in enumerate(self.passages):
            for at in range(len(passage) - BLOCK + 1):
                self._places.setdefault(passage[at : at + BLOCK], []).append((which, at))

    def look_in(self, text: str, source: str) -> None:
        """Compare with one more text; ``source`` names it."""
        text = normalised(text)
        for at in range(0, len(text) - BLOCK + 1, BLOCK):
            for which, place in self._places.get(text[at : at + BLOCK], ()):
                length = _shared(text, at, self.passages[which], place)
                if length > self.longest[which]:
                    self.longest[which], self.sources[which] = length, source


def _shared(text: str, at: int, passage: str, place: int) -> int:
    """Length of the equal stretch around ``text[at]`` and ``passage[place]``."""
    before = 0
    while before < min(at, place) and text[at - before - 1] == passage[place - before - 1]:
        before += 1
    after = 0
    while after < min(len(text) - at, len(passage) - place) and text[at + after] == passage[place + after]:
        after += 1
    return before + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True, help="heldout.jsonl.xz of models.corpus")
    parser.add_argument("--text", type=Path, required=True, help="folder with train-NN.jsonl of models.corpus")
    parser.add_argument("--cursors", type=int, default=100)
    parser.add_argument("--budget", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    require("memorised", [(args.model, EXPORT), (args.heldout, CORPUS), (args.text, CORPUS)])
    evaluation = Evaluation(args.model, args.device, args.budget)
    tokenizer = evaluation.tokenizer
    written, real = [], []
    for span in cursors(list(read_files(args.heldout)), args.cursors, SEED + 1):
        tokens = evaluation.answer(evaluation.prompt(span, plain=True), Tally(), ends=False)
        written.append(tokenizer.decode(tokens))
        real.append(tokenizer.decode(tokenizer.encode((span.middle + span.suffix)[: 20 * ANSWER])[:ANSWER]))
    found = {"written by the model": Passages(written), "really there": Passages(real)}
    for part in sorted(args.text.glob("train-*.jsonl")):
        for file in read_files(part):
            for passages in found.values():
                passages.look_in(file.text, f"{file.package}: {file.path}")
    for name, passages in found.items():
        long = [i for i, length in enumerate(passages.longest) if length >= LONG]
        able = sum(len(passage) >= LONG for passage in passages.passages)
        print(f"{name}: {len(long)} of {args.cursors} continuations ({able} of {LONG} characters or more) share")
        print(f"{LONG} characters or more with the training text; the longest shares {max(passages.longest)}")
        for i in long:
            print(f"  {passages.longest[i]} characters, {passages.sources[i]}: {passages.passages[i][:100]!r}")


if __name__ == "__main__":
    main()
