"""Whether a model fits: by the system's free memory, and by a container's limit when that is less."""

from pathlib import Path

import pytest

from server.process import memory
from server.process.memory import RUNTIME_BYTES, TooLittleMemory, available_memory, check_memory


@pytest.mark.parametrize(("container", "available"), [([], 5000), ([3000], 3000), ([7000], 5000)])
def test_the_smaller_of_the_systems_and_the_containers_memory_counts(
    monkeypatch: pytest.MonkeyPatch, container: list[int], available: int
) -> None:
    monkeypatch.setattr(memory, "_system_memory", lambda: 5000)
    monkeypatch.setattr(memory, "_container_memory", lambda: container)
    assert available_memory() == available


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: RUNTIME_BYTES + 10**9)
    check_memory(Path("m.gguf"), 10**8)
    with pytest.raises(TooLittleMemory, match=r"m\.gguf needs about \d+\.\d GB .*, and 1\.4 GB are available"):
        check_memory(Path("m.gguf"), 10**9)
