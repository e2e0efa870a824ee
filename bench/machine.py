"""What a benchmark ran on, and what a process took of it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Machine:
    """cores: those this process may run on. load: average of the last minute when the benchmark began."""

    cpu: str
    cores: int
    memory_gb: float
    python: str
    torch: str
    threads: str
    load: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB; Python {self.python}, torch {self.torch}; "
            f"OMP_NUM_THREADS {self.threads}; load average at the start {self.load:.2f}"
        )


def this_machine() -> Machine:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cpu=cpu_name(_read("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        cores=cores,
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        threads=os.environ.get("OMP_NUM_THREADS", "not set"),
        load=os.getloadavg()[0],
    )


def cpu_name(cpuinfo: str) -> str:
    """The model in the text of /proc/cpuinfo with the widest of the vector extensions that matter; "" if unknown."""
    fields = dict(part for line in cpuinfo.splitlines() if len(part := line.split("\t: ", 1)) == 2)
    fields = {name.strip(): value for name, value in fields.items()}
    name = fields.get("model name", "")
    flags = fields.get("flags", "").split()
    known = [label for flag, label in (("avx2", "AVX2"), ("avx512f", "AVX-512"), ("amx_tile", "AMX")) if flag in flags]
    return f"{name} ({known[-1]})" if name and known else name


def peak_megabytes(pid: int) -> float | None:
    """The most physical memory a process ever had, libraries shared with others included; None if unknown."""
    return kilobytes(_read(f"/proc/{pid}/status"), "VmHWM")


def proportional_megabytes(pid: int) -> float | None:
    """What a process has now, where a page that n processes share counts 1/n; None if unknown."""
    return kilobytes(_read(f"/proc/{pid}/smaps_rollup"), "Pss")


def kilobytes(status: str, field: str) -> float | None:
    """A field of a status file of the kernel (in units of 1,024 bytes) in megabytes of 10⁶ bytes."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024 / MEGABYTE
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
