"""The small model that these tests share, and the kernel on it."""

import pytest
import torch
from interpreted_kernel import InterpretedKernel
from small_models import Small, load, mixed_types, small_preset

from server.kernel.arithmetic import Arithmetic
from server.synth.write import synthetic_metadata, write_random_model


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    path = tmp_path_factory.mktemp("bench") / "small.gguf"
    preset = small_preset("27b")
    write_random_model(path, preset, mixed_types(preset), synthetic_metadata(preset, 0), 5)
    return load(path, Arithmetic(torch.float32))


@pytest.fixture
def kernel(small: Small) -> InterpretedKernel:
    return InterpretedKernel(small, small.model, small.interpreter.sms, [])
