"""``python -P -m bench.replay``: edits of this repository's history, typed in pieces; what of the prompts is reused.

No model runs: the prompts go through the engine's own prefix cache with a model that computes nothing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from bench.replay.history import NoHistory, read_history
from bench.replay.prompts import Layout, LedgerLayout, PlainLayout
from bench.replay.session import NEEDED, replay, replay_section, reused_share
from bench.table import section_text
from prompts.budget import Budget
from server.gguf.reader import ModelFile
from server.model.tokenizer import Tokenizer
from server.models_known import find_model

ROOT = Path(__file__).parents[2]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m bench.replay", description=__doc__)
    parser.add_argument("--edits", type=int, default=200, metavar="N", help="typed edits (200)")
    parser.add_argument("--files", type=int, default=20, metavar="N", help="open files (20)")
    parser.add_argument("--tokens", type=int, default=24_000, metavar="N", help="budget of a prompt (24000)")
    parser.add_argument("--bytes-per-token", type=float, default=3.0, metavar="X", help="assumed by the budget (3.0)")
    return parser.parse_args()


def main() -> int:
    arguments = read_arguments()
    print(shlex.join(["python", "-P", "-m", "bench.replay", *sys.argv[1:]]))
    try:
        history = read_history(ROOT, files=arguments.files, typed=arguments.edits)
    except NoHistory as error:
        print(f"the replay failed: {error}", file=sys.stderr)
        return 1
    tokenizer = Tokenizer.from_file(ModelFile.open(find_model(None)))
    size = sum(len(tokenizer.encode(text)) for text in history.files.values())
    typed = sum(edit.typed for edit in history.edits)
    print(f"{typed} typed edits and {len(history.edits) - typed} others in {len(history.files)} files of {size} tokens")
    budget = Budget(arguments.tokens, arguments.bytes_per_token)
    layouts: list[Layout] = [LedgerLayout(budget), PlainLayout(budget)]
    shares = []
    for layout in layouts:
        requests = replay(history, layout, tokenizer, longest=2 * arguments.tokens)
        shares.append(reused_share(requests))
        print("\n" + section_text(replay_section(layout.name, requests)), flush=True)
    print(f"\nreused by the ledger's prompts ≥ {NEEDED:.0%}: {'met' if shares[0] >= NEEDED else 'MISSED'}")
    return 0 if shares[0] >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
