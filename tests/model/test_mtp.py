"""The MTP head: prompt rows, drafts over the frequent ids, files without it."""

from pathlib import Path

import pytest
import torch
from state_checks import ModelMaker, mtp_differences, tokens
from tiny_model import write_tiny_model

from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel

IDS = tokens(60, 250)


@pytest.mark.parametrize(("variant", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("shape", ["default", "odd"])
def test_filled_rows_have_the_keys_and_values_of_full_rows(
    make_model: ModelMaker, shape: str, variant: str, bound: float
) -> None:
    model: HybridModel = make_model(shape, variant)
    hidden = model.prefill(IDS, model.new_state())
    previous = torch.cat((torch.zeros_like(hidden[:1]), hidden[:-1]))
    filled, full, prompt = model.new_state(), model.new_state(), model.new_state()
    model.mtp_fill(IDS[:40], previous[:40], filled)
    model.mtp_fill(IDS[40:], previous[40:], filled)
    model.mtp_rows(IDS, previous, full)
    model.prefill(IDS[:33], prompt)
    model.prefill(IDS[33:], prompt)
    assert filled.mtp_length == full.mtp_length == prompt.mtp_length == len(IDS)
    assert mtp_differences(filled, full, bound) == []
    assert mtp_differences(prompt, full, 1e-3 if variant == "float32" else 1e-9) == []


def test_the_first_token_pairs_with_a_zero_hidden_and_the_next_with_the_first_hidden(exact_model: HybridModel) -> None:
    state, shifted = exact_model.new_state(), exact_model.new_state()
    hidden = exact_model.prefill(IDS, state)
    exact_model.mtp_fill(IDS, hidden, shifted)
    assert mtp_differences(state, shifted, 1e-3) != []


def test_mtp_rows_are_the_same_together_and_alone(model: HybridModel) -> None:
    hidden = model.prefill(IDS, model.new_state())
    together, alone = model.new_state(), model.new_state()
    rows = model.mtp_rows(IDS[:16], hidden[:16], together)
    single = [model.mtp_rows([token], hidden[i : i + 1], alone) for i, token in enumerate(IDS[:16])]
    assert torch.equal(rows, torch.cat(single))
    assert mtp_differences(together, alone, 0.0) == []


def test_truncated_mtp_rows_are_replaced(model: HybridModel) -> None:
    state, straight = model.new_state(), model.new_state()
    for each in (state, straight):
        model.prefill(IDS, each)
    before = state.last_hidden[None]
    model.mtp_rows([1, 2, 3], before.expand(3, -1), state)
    state.truncate_mtp(len(IDS))
    assert torch.equal(model.mtp_rows([9], before, state), model.mtp_rows([9], before, straight))
    with pytest.raises(ValueError, match="can't cut an MTP cache of 61 rows to 62"):
        state.truncate_mtp(62)


def test_the_draft_head_knows_the_first_ids_and_those_asked_for(tmp_path: Path) -> None:
    file = ModelFile.open(write_tiny_model(tmp_path / "m.gguf"))
    full = HybridModel.load(file)
    small = HybridModel.load(file, draft_rows=100, draft_also=[282, 280, 5])
    known = [*range(100), 280, 282]
    state = small.new_state()
    rows = small.mtp_rows(IDS[:5], small.prefill(IDS[:5], full.new_state()), state)
    logits = small.draft_logits(rows)
    assert [small.draft_token(i) for i in range(logits.shape[1])] == known
    assert torch.allclose(logits, full.draft_logits(rows)[:, known], atol=1e-5)
    assert [full.draft_token(i) for i in (0, 319)] == [0, 319]
    assert small.logits(rows).shape[1] == full.config.vocab
    assert HybridModel.load(file, draft_rows=10**6).draft_logits(rows).shape[1] == full.config.vocab


def test_a_model_without_the_head_runs_and_refuses_to_draft(tmp_path: Path) -> None:
    model = HybridModel.load(ModelFile.open(write_tiny_model(tmp_path / "m.gguf", mtp_layers=0)))
    assert not model.config.mtp
    state = model.new_state()
    hidden = model.prefill(IDS, state)
    checkpoint = state.checkpoint()
    model.decode([1, 2], state)
    state.rollback(1)
    state.restore(checkpoint)
    model.prefill([3], state)
    assert state.mtp_length == 0
    for call in (model.mtp_rows, model.mtp_fill):
        with pytest.raises(ValueError, match="no MTP head"):
            call([1], hidden[:1], state)
    with pytest.raises(ValueError, match="no MTP head"):
        model.draft_logits(hidden[:1])
