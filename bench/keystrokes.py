"""``python -P -m bench.keystrokes``: lines of a real file typed again at the speed of a person, without waiting for
items.

A key every 60 to 120 ms, and a pause now and then, as long as a thought. Where the item on the screen goes on as the
file does, the next key follows it, as it does for somebody who types along; nothing is accepted. So the share of keys
that an item had foretold is what it could have saved.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.engine import EngineHome
from bench.figures import Figure, Section, percentile
from bench.lsp_client import LspClient, Message
from bench.machine import this_machine
from bench.material import corpus
from bench.table import section_text

KEYS_MS = (60, 120)
PAUSE_MS = (300, 900)
PAUSES = 0.1
"""Of the keys that end a word; each line break has one."""
FIRST_LINE = 40
LINES = 12
FILE = "shop.py"


class TimedClient(LspClient):
    """Notes when each answer came."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.came: dict[Any, tuple[float, Message]] = {}
        super().__init__(*arguments, **more)

    def _take(self, message: Message) -> None:
        if "method" not in message:
            self.came[message.get("id")] = (time.perf_counter(), message)
        super()._take(message)


@dataclass(frozen=True)
class Key:
    """ms: from the key to the answer. foretold: the item begins with the next character of the file."""

    ms: float
    reason: str
    memory: bool
    foretold: bool
    prefetched: bool = False


def retype(client: TimedClient, uri: str, text: str, lines: int, chance: random.Random) -> list[Key]:
    """Take ``lines`` lines from FIRST_LINE out of the text and type them again."""
    every = text.split("\n")
    typed = "\n".join(every[FIRST_LINE : FIRST_LINE + lines])
    client.open(uri, "\n".join([*every[:FIRST_LINE], "", *every[FIRST_LINE + lines :]]))
    client.wait_ready()
    client.inline(uri, FIRST_LINE, 0)  # whatever a first request costs is another benchmark's
    after = len(client.messages)
    line, column, sent = FIRST_LINE, 0, []
    for number, character in enumerate(typed):
        began = time.perf_counter()
        client.insert(uri, number + 2, line, column, character)
        line, column = (line + 1, 0) if character == "\n" else (line, column + 1)
        sent.append((client.start_inline(uri, line, column, automatic=True), began))
        pauses = character == "\n" or (not character.isalnum() and chance.random() < PAUSES)
        time.sleep(chance.uniform(*(PAUSE_MS if pauses else KEYS_MS)) / 1000)
    for request, _ in sent:
        client.result(request, timeout=60)
    said = {s["last"]["version"]: s["last"] for _, s in client.sent("draftline/status", after) if s["last"]}
    keys = []
    for number, (request, began) in enumerate(sent):
        came, answer = client.came[request]
        items = (answer.get("result") or {}).get("items") or []
        foretold = bool(items) and items[0]["insertText"][:1] == typed[number + 1 : number + 2] != ""
        last = said[number + 2]
        keys.append(Key((came - began) * 1000, last["reason"], last["cached"], foretold, last["prefetched"]))
    return keys


def keys_section(keys: Sequence[Key]) -> Section:
    shown = [key for key in keys if key.reason == "shown"]
    asked = [key for key in keys if not key.memory and key.reason not in ("cancelled", "mid_word", "blank")]
    section = Section("Typing at 60 to 120 ms a key, with pauses")
    section.figures = [
        Figure("key to item", "ms", tuple(key.ms for key in shown)),
        Figure("95 of 100 of these", "ms", (percentile([k.ms for k in shown], 0.95),) if shown else ()),
        Figure("key to item from the engine", "ms", tuple(key.ms for key in shown if not key.memory)),
        Figure("key to item from memory", "ms", tuple(key.ms for key in shown if key.memory)),
    ]
    foretold = sum(key.foretold for key in keys)
    section.facts = [
        ("keys", f"{len(keys)}; " + ", ".join(f"{k} {n}" for k, n in sorted(Counter(x.reason for x in keys).items()))),
        ("from memory", f"{sum(key.memory for key in keys)} of {len(keys)} answers"),
        ("foretold", f"{foretold} of {len(keys)} keys"),
        ("answers of the engine for a foretold character", f"{len(asked) / foretold:.2f}" if foretold else "-"),
        ("made before they were asked for", f"{sum(key.prefetched for key in keys)} answers"),
        ("given up for the next key", f"{sum(key.reason == 'cancelled' for key in keys)} of {len(keys)}"),
    ]
    return section


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.keystrokes", description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES, help="how many lines are typed")
    lines = parser.parse_args(words).lines
    print(this_machine())
    with EngineHome() as home:
        root = home.places.runtime / "shop"
        root.mkdir()
        with TimedClient(cwd=root, env=home.environment, timeout=120) as client:
            client.initialize(root=root)
            keys = retype(client, (root / FILE).as_uri(), corpus(), lines, random.Random(1))
    print(section_text(keys_section(keys)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
