"""Small models on this machine's GPU; without one these tests are skipped."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from on_kernel import MakeOnKernel, OnKernel, kernel_model_file, on_kernel
from small_models import small_preset

from server.gguf.types import TensorType
from server.kernel.gpu import GpuKernel


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> MakeOnKernel:
    """make(size, type=None, timed=False): a small model of a size's ratios; all types of matrices in turn, or one."""
    folder, made = tmp_path_factory.mktemp("gpu"), {}

    def maker(size: str, type: TensorType | None = None, timed: bool = False) -> OnKernel:
        if (size, type, timed) not in made:
            wide = replace(small_preset("27b"), key_heads=12, value_heads=36, ffn=8192)
            path = kernel_model_file(folder, size, wide if size == "wide" else None, type)
            made[size, type, timed] = on_kernel(
                path, lambda model, weights: GpuKernel(model, weights, timed=timed), "cuda"
            )
        return made[size, type, timed]

    return maker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
