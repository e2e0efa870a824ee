"""Every golden file: the arrays that another engine computed, trunk, MTP head, chain of drafts, rollback."""

from pathlib import Path

import golden_files
import numpy as np
import pytest
import torch

from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel

BOUNDS = {torch.float32: 2e-3, torch.float64: 1e-4}
ARRAYS = ("trunk_logits", "hidden", "mtp_logits", "draft_logits", "rollback_logits")


def compute(path: Path, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """What the file's `.npz` holds, computed here."""
    model = HybridModel.load(ModelFile.open(path), dtype=dtype)
    ids = np.load(path.with_suffix(".npz"))["ids"].tolist()
    state = model.new_state()
    hidden = torch.cat([model.prefill(ids[:100], state), *(model.decode([token], state) for token in ids[100:])])
    previous = torch.cat((torch.zeros_like(hidden[:1]), hidden[:-1]))
    mtp_rows = model.mtp_rows(ids[:149], previous[:149], model.new_state())

    model.mtp_fill(ids[100:149], previous[100:149], state)
    token, row, drafts = ids[149], previous[149:], []
    for _ in range(4):
        row = model.mtp_rows([token], row, state)
        drafts.append(model.draft_logits(row))
        token = model.draft_token(int(drafts[-1].argmax()))

    model.decode([1, 2, 3, 4, 5], state)
    state.rollback(2)
    after = model.decode([7, 8], state)
    results = {
        "trunk_logits": model.logits(hidden),
        "hidden": hidden,
        "mtp_logits": model.draft_logits(mtp_rows),
        "draft_logits": torch.cat(drafts),
        "rollback_logits": model.logits(after),
    }
    return {name: array.double().numpy() for name, array in results.items()}


CASES = [(path, dtype) for path in golden_files.models() for dtype in BOUNDS]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].stem}-{str(case[1])[6:]}")
def case(request: pytest.FixtureRequest) -> tuple[Path, torch.dtype, dict[str, np.ndarray]]:
    path, dtype = request.param
    return path, dtype, compute(path, dtype)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_another_engine(case: tuple[Path, torch.dtype, dict[str, np.ndarray]], name: str) -> None:
    path, dtype, results = case
    bound = BOUNDS[dtype]
    expected = np.load(path.with_suffix(".npz"))[name].astype(np.float64)
    got = results[name]
    assert np.abs(expected).max() > 1, "the comparison needs numbers of some size"
    assert np.abs(got - expected).max() <= bound
    if name != "hidden":
        best = np.sort(expected, axis=-1)
        clear = best[:, -1] - best[:, -2] > bound
        assert clear.mean() > 0.9
        assert (got.argmax(-1) == expected.argmax(-1))[clear].all()


def test_there_are_golden_files() -> None:
    assert {path.stem for path in golden_files.models()} >= {"hybrid-a-F32", "hybrid-b-Q4_K_M", "hybrid-b-Q2_K"}
