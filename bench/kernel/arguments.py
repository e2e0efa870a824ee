"""The command line of ``python -P -m bench.kernel``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from server.kernel.buffers import MAX_DRAFTS, MAX_ROWS

CONTEXTS = (0, 4096, 30_000, 100_000)
QUICK_CONTEXTS = (0, 4096)
POSITIONS, RANDOM_POSITIONS = 5120, 256
"""Of the accuracy part, for models with real and with random weights."""


def numbers(least: int, most: int) -> Callable[[str], list[int]]:
    """Parses "1,5,8-10": numbers and ranges between these bounds, ascending; "" is none."""

    def parse(text: str) -> list[int]:
        found: set[int] = set()
        for part in filter(None, text.split(",")):
            first, dash, last = part.partition("-")
            try:
                found |= set(range(int(first), int(last) + 1)) if dash else {int(first)}
            except ValueError:
                raise argparse.ArgumentTypeError(f"{part!r} is neither a number nor a range like 1-8") from None
        if any(not least <= number <= most for number in found):
            raise argparse.ArgumentTypeError(f"{text!r}: these are {least} to {most}")
        return sorted(found)

    return parse


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -P -m bench.kernel", description="Times, exactness and accuracy of the decode kernel on this GPU."
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file or a known name")
    parser.add_argument("--preset", help="a synthetic model instead, as `draftline synth` knows them (default 27b)")
    parser.add_argument("--mix", help="its tensor types (default q4_k_m)")
    parser.add_argument("--rows", type=numbers(1, MAX_ROWS), metavar="LIST", help="T of launches without drafts: 1-16")
    parser.add_argument("--drafts", type=numbers(1, MAX_DRAFTS), metavar="LIST", help="n of whole cycles: 1-7")
    parser.add_argument("--contexts", type=numbers(0, 1 << 20), metavar="LIST", help="positions: 0,4096,30000,100000")
    parser.add_argument("--draft-rows", type=int, default=32_768, help="rows of the draft head (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few launches: whether it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    parser.add_argument(
        "--accuracy", nargs="?", const="", metavar="TEXT",
        help="logits against float32 instead of times, along a held-out text (without one: this repository's files)",
    )  # fmt: skip
    parser.add_argument("--positions", type=int, help="of the accuracy part (default 5120; random weights: 256)")
    given = parser.parse_args(words)
    if given.model and (given.preset or given.mix):
        parser.error("give a MODEL or a --preset with its --mix, not both")
    if given.json and not given.json.absolute().parent.is_dir():
        parser.error(f"{given.json} can't be written: there is no such folder")
    if given.accuracy and not Path(given.accuracy).is_file():
        parser.error(f"there is no text {given.accuracy}")
    if given.draft_rows < 1 or (given.positions is not None and given.positions < 1):
        parser.error("--draft-rows and --positions are 1 at least")
    quick = given.quick
    given.preset, given.mix = given.preset or "27b", given.mix or "q4_k_m"
    given.rows = ([1, 5, 8, 16] if quick else list(range(1, MAX_ROWS + 1))) if given.rows is None else given.rows
    given.drafts = ([4] if quick else list(range(1, MAX_DRAFTS + 1))) if given.drafts is None else given.drafts
    given.contexts = list(QUICK_CONTEXTS if quick else CONTEXTS) if given.contexts is None else given.contexts
    given.launches = 5 if quick else 20
    given.tokens = 64 if quick else 256
    return given
