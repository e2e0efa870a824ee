"""Whether a model fits: what its weights take in the form they are kept in, and what the system has left for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from server import host_memory
from server.gguf.reader import ModelFile
from server.host_memory import available_memory
from server.model import linear
from server.models_known import find_model
from server.process import memory
from server.process.memory import RUNTIME_BYTES, TooLittleMemory, check_memory

LOAD = """
import ctypes, sys, torch
from pathlib import Path
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.linear import can_halve
from server.model.weights import loaded_bytes

def anonymous():
    ctypes.CDLL(None).malloc_trim(0)
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

file, half = ModelFile.open(Path(sys.argv[1])), can_halve("cpu", torch.float32)
torch.ones(300, 300) @ torch.ones(300, 300)
before = anonymous()
model = HybridModel.load(file, half_weights=half)
print((anonymous() - before) / loaded_bytes(file, half))
"""


@pytest.mark.parametrize(("container", "available"), [([], 5000), ([3000], 3000), ([7000], 5000)])
def test_the_smaller_of_the_systems_and_the_containers_memory_counts(
    monkeypatch: pytest.MonkeyPatch, container: list[int], available: int
) -> None:
    monkeypatch.setattr(host_memory, "_system_memory", lambda: 5000)
    monkeypatch.setattr(host_memory, "_container_memory", lambda: container)
    assert available_memory() == available


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    monkeypatch.setattr(memory, "available_memory", lambda: RUNTIME_BYTES + 10**8)
    check_memory(ModelFile.open(path))
    monkeypatch.setattr(memory, "available_memory", lambda: RUNTIME_BYTES)
    with pytest.raises(TooLittleMemory, match=r"m\.gguf needs about 0\.4 GB of memory .*, and 0\.4 GB are available"):
        check_memory(ModelFile.open(path))


def test_weights_kept_in_half_precision_need_half_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    file = ModelFile.open(find_model(None))
    monkeypatch.setattr(memory, "available_memory", lambda: RUNTIME_BYTES + 160 * 10**6)
    monkeypatch.setattr(linear, "can_halve", lambda device, dtype: True)
    check_memory(file)
    monkeypatch.setattr(linear, "can_halve", lambda device, dtype: False)
    with pytest.raises(TooLittleMemory):
        check_memory(file)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what a process holds")
def test_the_estimate_is_what_loading_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, str(find_model(None))], capture_output=True, text=True, check=True
    )
    assert 0.9 < float(done.stdout) < 1.2
