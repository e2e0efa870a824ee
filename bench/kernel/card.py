"""What is known of the GPU: its name, its driver, its clocks."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass
from typing import Any

import torch

QUERY = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "temperature.gpu")


@dataclass(frozen=True)
class Card:
    name: str
    sms: int
    memory_gb: float
    cuda: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name}, {self.sms} SMs, {self.memory_gb:.0f} GB, CUDA {self.cuda} of torch"


def this_card() -> Card:
    found = torch.cuda.get_device_properties("cuda")
    return Card(found.name, found.multi_processor_count, found.total_memory / 1e9, str(torch.version.cuda))


def clocks() -> str:
    """Driver and clocks as the driver's tool has them at the moment, or that it doesn't say."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: nvidia-smi doesn't answer ({error})"
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(QUERY):
        return f"unknown: nvidia-smi ends with {done.returncode}"
    return ", ".join(f"{name} {value}" for name, value in zip(QUERY, values, strict=True))
