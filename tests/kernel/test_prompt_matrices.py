"""Prompts with matrices made of the kernel's tiles: what a model with matrices of its own computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_model import write_tiny_model

from server.gguf.reader import ModelFile
from server.kernel.device import DeviceModel
from server.kernel.model import KernelModel
from server.kernel.prompt_matrices import TileMatrices, scratch_size
from server.model.hybrid import HybridModel


def near(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Few rows are computed in another way where they are to be independent."""
    return torch.allclose(first, second, rtol=1e-12, atol=1e-12)


IDS = [n * 7 % 50 for n in range(150)]


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"mtp_layers": 0}])
def test_prompts_are_the_same(tmp_path: Path, options: dict[str, int]) -> None:
    file = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", seed=4, **options))
    kernel = KernelModel.from_file(file, 40)
    weights = DeviceModel.from_file(file, kernel, "cpu")
    matrices = TileMatrices(kernel, weights, torch.float64)
    whole = HybridModel.load(file, dtype=torch.float64, draft_rows=40)
    made = HybridModel.load(file, dtype=torch.float64, draft_rows=40, matrices=matrices)
    for step in (IDS, IDS[:5]):
        states = whole.new_state(), made.new_state()
        hidden = [model.prefill(step, state) for model, state in zip((whole, made), states, strict=True)]
        assert near(*hidden)
        assert near(whole.logits(hidden[0][-2:]), made.logits(hidden[1][-2:]))
        if whole.config.mtp:
            rows = [
                model.mtp_rows([3], h[-1:], state)
                for model, h, state in zip((whole, made), hidden, states, strict=True)
            ]
            assert near(*rows)
            assert near(whole.draft_logits(rows[0]), made.draft_logits(rows[1]))
    assert matrices.scratch.numel() == scratch_size(kernel)


def test_a_matrix_that_is_larger_than_the_memory_for_one_is_made_in_pieces(tmp_path: Path) -> None:
    file = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", seed=4))
    kernel = KernelModel.from_file(file, 40)
    matrices = TileMatrices(kernel, DeviceModel.from_file(file, kernel, "cpu"), torch.float64)
    whole = HybridModel.load(file, dtype=torch.float64)
    matrices.scratch = matrices.scratch[: 128 * kernel.config.hidden]
    made = HybridModel.load(file, dtype=torch.float64, draft_rows=40, matrices=matrices)
    x = torch.randn(3, kernel.config.hidden, dtype=torch.float64)
    assert kernel.config.vocab > 128
    assert near(whole.logits(x), made.logits(x))
