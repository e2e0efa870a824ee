"""``python -P -m bench.large_file``: what changes of a very large file cost the language server, through its real
process.

A change has no answer, so each is followed by a request that needs nothing: both together are what the editor waits
for.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.engine import EngineHome
from bench.figures import Figure, Section, Target, percentile
from bench.lsp_client import LspClient
from bench.machine import this_machine
from bench.table import section_text

SIZE = 10_000_000
CHANGE_P99_MS = 10.0
IDLE_PERCENT = Target("≤", 5)
LINES = {
    "lines of code": "    total = compute(first, second)  # 'é' and more of it\n",
    "60,000-character lines": "x=f(1);" * 8571 + "\n",
    "one minified line": "",
}


def text_of(line: str, size: int) -> str:
    return line * (size // len(line)) if line else "x=f(1);" * (size // 7)


def measure(client: LspClient, uri: str, name: str, line: str, *, size: int, changes: int, idle_s: float) -> Section:
    """Type in the middle of a file of ``size`` characters, a line break now and then; then leave it alone."""
    text = text_of(line, size)
    client.open(uri, text)
    _ask(client)
    middle = text.count("\n") // 2
    column = 5 if middle else len(text) // 2
    alone, together = [], []
    for number in range(changes):
        alone.append(_ask(client))
        began = time.perf_counter()
        client.insert(uri, number + 2, middle, column, "\n" if line and number % 20 == 19 else "a")
        _ask(client)
        together.append((time.perf_counter() - began) * 1000)
    began, used = time.perf_counter(), _cpu_seconds(client.process.pid)
    time.sleep(idle_s)
    idle = 100 * (_cpu_seconds(client.process.pid) - used) / (time.perf_counter() - began)
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    section = Section(f"A file of {size / 1e6:.0f} MB: {name}")
    section.figures = [
        Figure("a change and an empty request", "ms", tuple(together)),
        Figure("99 of 100 of these", "ms", (percentile(together, 0.99),), Target("≤", CHANGE_P99_MS)),
        Figure("an empty request alone", "ms", tuple(alone)),
        Figure("processor time while nothing happens", "%", (idle,), IDLE_PERCENT),
    ]
    return section


def _ask(client: LspClient) -> float:
    began = time.perf_counter()
    client.request("draftline/nextPart", {"id": "none", "part": "word"})
    return (time.perf_counter() - began) * 1000


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.large_file", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small file and few changes: whether it runs")
    quick = parser.parse_args(words).quick
    print(this_machine())
    with EngineHome() as home:
        root = home.places.runtime / "shop"
        root.mkdir()
        with LspClient(cwd=root, env=home.environment, timeout=120) as client:
            client.initialize(root=root)
            client.wait_ready()
            for name, line in LINES.items():
                uri = (root / f"{name[:3].strip()}.py").as_uri()
                size, changes, idle_s = (100_000, 5, 0.1) if quick else (SIZE, 200, 5.0)
                print(section_text(measure(client, uri, name, line, size=size, changes=changes, idle_s=idle_s)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
