"""A synthetic model computes like a living one: finite states, logits that are neither flat nor frozen."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.synth.mixes import MIXES
from server.synth.presets import PRESETS, Preset, scaled_down
from server.synth.write import write_synthetic_model

DEEP = replace(scaled_down(PRESETS["27b"], layers=64, hidden=256), heads=6, kv_heads=1, ffn=512)
"""As deep as the 27B, and 1/20 as wide."""
CASES = {
    "tiny": (PRESETS["tiny"], "q4_k_m"),
    "tiny f16": (PRESETS["tiny"], "f16"),
    "tiny q8_0": (PRESETS["tiny"], "q8_0"),
    "0.8b scaled down (tied)": (scaled_down(PRESETS["0.8b"], hidden=256), "q4_k_m"),
    "9b scaled down": (scaled_down(PRESETS["9b"], hidden=256), "q4_k_m"),
    "as deep as 27b": (DEEP, "q4_k_m"),
}
LENGTH = 200


@pytest.mark.parametrize(("preset", "mix"), CASES.values(), ids=CASES)
def test_activations_stay_finite_and_logits_alive_over_200_tokens(tmp_path: Path, preset: Preset, mix: str) -> None:
    write_synthetic_model(tmp_path / "m.gguf", preset, MIXES[mix])
    model = HybridModel.load(ModelFile.open(tmp_path / "m.gguf"))
    decays = watch_decays(model)
    state = model.new_state()
    ids = torch.randint(0, preset.ordinary_tokens, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    hidden = model.prefill(ids, state)
    logits = model.logits(hidden)
    assert hidden.isfinite().all()
    assert all(memory.isfinite().all() and memory.abs().max() < 100 for memory in state.memory)

    spread = logits.std(1)
    assert float(spread.min()) > 1
    assert float(spread.max()) < 5
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    assert 0.4 * torch.tensor(preset.vocab).log() < entropy.mean() < 0.9 * torch.tensor(preset.vocab).log()
    best = logits.argmax(1)
    assert best.unique().numel() > LENGTH // 2
    assert (best == torch.tensor(ids)).float().mean() < 0.2  # a tied model doesn't repeat its input

    other = model.prefill([*ids[-2::-1], ids[-1]], model.new_state())
    assert torch.cosine_similarity(hidden[-1], other[-1], dim=0) < 0.9  # what came before matters

    decay = torch.cat(decays)
    assert float((decay > 0.999).float().mean()) < 0.6
    assert float((decay < 0.01).float().mean()) < 0.1
    assert float(((decay > 0.5) & (decay < 0.99)).float().mean()) > 0.2

    previous = torch.cat((hidden.new_zeros(1, preset.hidden), hidden[:-1]))
    drafts = model.draft_logits(model.mtp_rows(ids, previous, model.new_state()))
    assert float(drafts.std(1).min()) > 1
    assert float(drafts.std(1).max()) < 5
    assert drafts.argmax(1).unique().numel() > LENGTH // 3


def watch_decays(model: HybridModel) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    prepare = model.delta_net._prepare

    def watched(*arguments):
        prepared = prepare(*arguments)
        seen.append(prepared.log_decay.exp().flatten())
        return prepared

    model.delta_net._prepare = watched
    return seen
