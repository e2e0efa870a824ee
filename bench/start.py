"""From nothing to ready: the engine process's start, the command line's answer, and the memory an engine takes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from bench.engine import COMMAND, BenchEngine, EngineHome
from bench.figures import Figure, Section, Target
from bench.machine import peak_megabytes, proportional_megabytes

START_S = Target("≤", 4)
HELP_S = Target("≤", 0.3)
MEMORY_MB = Target("≤", 1200)


def start_seconds(runs: int) -> list[float]:
    """``draftline serve`` from the start of the process to the first "ready" of /health, with the embedded model."""
    seconds = []
    for _ in range(runs):
        with EngineHome() as home, home.start() as engine:
            seconds.append(engine.start_seconds)
    return seconds


def help_seconds(runs: int) -> list[float]:
    """``draftline --help`` as a whole process."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True, env=os.environ)
        seconds.append(time.perf_counter() - began)
    return seconds


def start_section(starts: Sequence[float], helps: Sequence[float]) -> Section:
    section = Section("Start")
    section.figures = [
        Figure("draftline serve until ready", "s", tuple(starts), START_S),
        Figure("draftline --help", "s", tuple(helps), HELP_S),
    ]
    return section


def memory_section(engine: BenchEngine, answers: int) -> Section:
    """What the engine has taken by now."""
    peak, share = peak_megabytes(engine.pid), proportional_megabytes(engine.pid)
    section = Section(f"Memory of the engine process after {answers} answers")
    section.figures = [
        Figure("peak of its resident memory (VmHWM)", "MB", () if peak is None else (peak,), MEMORY_MB),
        Figure("its own share of memory now (PSS)", "MB", () if share is None else (share,)),
    ]
    return section
