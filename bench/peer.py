"""The same file, prompts and threads in llama.cpp, through the optional package xllamacpp."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Figure, Section

PACKAGE = "xllamacpp"
PATIENCE_S = 900
RESULT = "draftline-peer-result "


@dataclass(frozen=True)
class PeerRun:
    """One answer of the peer: tokens, and tokens per second."""

    prompt_tokens: int
    prefill_rate: float
    generated: int
    decode_rate: float


class PeerFailed(Exception):  # noqa: N818
    """The peer isn't installed or didn't do its part; str() is one line."""


def run_peer(model: Path, prompts: Sequence[tuple[str, int]], *, threads: int, context: int) -> list[PeerRun]:
    """Greedy answers to (prompt, tokens to generate), one after another in one process of its own: the library aborts
    its process on errors. Raises PeerFailed."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise PeerFailed(f"{PACKAGE} is not installed: no comparison with llama.cpp (pip install 'draftline[peer]')")
    job = {"model": str(model), "threads": threads, "context": context, "prompts": list(prompts)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bench.peer_process"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"llama.cpp was not done after {PATIENCE_S} s") from None
    found = [line.removeprefix(RESULT) for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not found:
        words = done.stderr.strip().splitlines()
        raise PeerFailed(f"llama.cpp ended with status {done.returncode}: {words[-1] if words else 'no message'}")
    return [read_timings(timings) for timings in json.loads(found[-1])]


def read_timings(timings: dict[str, Any]) -> PeerRun:
    """What llama.cpp says about one answer."""
    return PeerRun(
        prompt_tokens=timings["prompt_n"],
        prefill_rate=timings["prompt_per_second"],
        generated=timings["predicted_n"],
        decode_rate=timings["predicted_per_second"],
    )


def comparison(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> Section:
    """Medians side by side; both by the name of what was measured, in tokens per second."""
    section = Section("Against llama.cpp: same file, prompts and number of threads, greedy")
    for name, rates in theirs.items():
        section.figures.append(Figure(f"llama.cpp, {name}", "tokens/s", tuple(rates)))
    for name, rates in ours.items():
        peer = theirs[name.partition(",")[0]]
        ratio = statistics.median(rates) / statistics.median(peer)
        section.facts.append((f"ours / llama.cpp, {name}", f"{ratio:.2f} (reach for 0.5)"))
    return section
