"""Prefill in chunks computes what decoding token by token computes, and a prompt may be cut where chunks end."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from state_checks import ModelMaker, decode_in, differences, tokens
from tiny_model import write_tiny_model

from server.gguf.reader import ModelFile
from server.model import hybrid
from server.model.delta_net import CHUNK
from server.model.hybrid import HybridModel
from server.model.linear import can_halve
from server.model.state import SequenceState

BOUND = 1e-9


def distance(model: HybridModel, prompt: list[int], pieces: list[list[int]]) -> float:
    """Largest difference between decoding all of `pieces` after a prompt and prefilling them piece by piece, in
    hiddens and memories."""
    chunked, stepped = model.new_state(), model.new_state()
    for each in (chunked, stepped):
        if prompt:
            model.prefill(prompt, each)
    hidden = torch.cat([model.prefill(piece, chunked) for piece in pieces])
    expected = decode_in(model, stepped, [token for piece in pieces for token in piece], (16,))
    assert chunked.tokens == stepped.tokens
    gaps = [hidden - expected, chunked.memory - stepped.memory, chunked.last_hidden - stepped.last_hidden]
    gaps += [x - y for x, y in zip(chunked.conv, stepped.conv, strict=True)]
    worst = torch.stack([gap.abs().max() for gap in gaps]).max()
    return float("inf") if bool(worst.isnan()) else float(worst)


@pytest.mark.parametrize("shape", ["default", "odd", "wide"])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 130, 200])
def test_a_prompt_in_chunks_equals_steps(make_model: ModelMaker, shape: str, length: int) -> None:
    assert distance(make_model(shape, "float64"), [], [tokens(length, 250)]) < BOUND


@pytest.mark.parametrize("start", [1, 5, 63, 64, 100, 250])
def test_a_prefill_may_begin_anywhere(exact_model: HybridModel, start: int) -> None:
    assert distance(exact_model, tokens(start, 250), [tokens(90, 250, seed=1)]) < BOUND


@pytest.mark.parametrize("cuts", [(1, 1, 1), (10, 54, 3), (70, 70), (64, 64), (2, 126, 2)])
def test_a_prefill_may_be_cut_anywhere(exact_model: HybridModel, cuts: tuple[int, ...]) -> None:
    ids = tokens(sum(cuts), 250)
    pieces = [ids[sum(cuts[:i]) : sum(cuts[: i + 1])] for i in range(len(cuts))]
    assert distance(exact_model, [], pieces) < BOUND


@pytest.mark.parametrize("decay", [-60.0, -1e-4])
def test_chunks_hold_where_memories_vanish_or_stay(tmp_path: Path, decay: float) -> None:
    """Repeated tokens give parallel keys, the hardest system to solve; strong decays would overflow as quotients."""

    def edit(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("ssm_a"):
                tensor[:] = decay
            if name.endswith("ssm_beta.weight"):
                tensor *= 4

    model = HybridModel.load(ModelFile.open(write_tiny_model(tmp_path / "m.gguf", edit=edit)), dtype=torch.float64)
    assert distance(model, [], [[7] * 150 + tokens(10, 250)]) < 1e-7


@pytest.mark.parametrize("variant", ["float32", "half"])
@pytest.mark.parametrize("shape", ["default", "odd"])
def test_cuts_where_chunks_end_change_no_bit(
    make_model: ModelMaker,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    variant: str,
) -> None:
    if variant == "half" and not can_halve("cpu", torch.float32):
        pytest.skip("no float16 weights on this processor")
    model: HybridModel = make_model(shape, variant)
    ids = tokens(330, model.config.vocab)
    whole = model.new_state()
    expected = model.prefill(ids, whole)
    for cuts in ([64], [256], [128, 192, 320], list(range(CHUNK, 330, CHUNK))):
        state = model.new_state()
        borders = [0, *cuts, len(ids)]
        parts = [model.prefill(ids[a:b], state) for a, b in pairwise(borders)]
        assert torch.equal(torch.cat(parts), expected), cuts
        assert differences(state, whole) == [], cuts
    monkeypatch.setattr(hybrid, "PREFILL_BLOCK", 2 * CHUNK)
    state = model.new_state()
    assert torch.equal(model.prefill(ids, state), expected)
    assert differences(state, whole) == []


def test_a_warm_start_at_a_chunk_border_changes_no_bit(model: HybridModel) -> None:
    """What was cached doesn't show: restored at 128 and prefilled to the end, as if computed in one go."""
    ids, other = tokens(200, 250), tokens(40, 250, seed=2)
    warm, cold = model.new_state(), model.new_state()
    model.prefill(ids[:128], warm)
    checkpoint = warm.checkpoint()
    model.prefill(other, warm)
    model.decode(other[:7], warm)
    warm.restore(checkpoint)
    assert torch.equal(model.prefill(ids[128:], warm), model.prefill(ids, cold)[128:])
    assert differences(warm, cold) == []


def test_an_empty_prefill_changes_nothing(model: HybridModel) -> None:
    state, untouched = model.new_state(), model.new_state()
    assert model.prefill([], state).shape == (0, model.config.hidden)
    assert differences(state, untouched) == []


def test_prefill_refuses_to_run_ahead_of_the_mtp_cache(model: HybridModel) -> None:
    state: SequenceState = model.new_state()
    model.decode([1, 2, 3], state)
    with pytest.raises(ValueError, match="after 3 tokens, but the MTP cache holds 0"):
        model.prefill([4], state)
