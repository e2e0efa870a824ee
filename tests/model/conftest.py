"""Models that several of these tests share."""

from pathlib import Path

import pytest
import torch
from state_checks import ModelMaker
from tiny_model import write_tiny_model

from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel

SHAPES = {
    "default": {},
    "odd": {
        "hidden": 40, "ffn": 56, "layers": 3, "full_attention_interval": 3, "heads": 3, "kv_heads": 1, "head_dim": 24,
        "rope_dims": 12, "key_heads": 1, "value_heads": 3, "state_size": 24, "tied": False,
    },
    "wide": {
        "hidden": 64, "ffn": 1100, "layers": 2, "full_attention_interval": 2, "heads": 1, "kv_heads": 1,
        "key_heads": 2, "value_heads": 4, "state_size": 32,
    },
}  # fmt: skip
"""default: three value heads a key head. odd: no width is whole vectors. wide: inner products above 1,024 terms, where
some libraries treat a lone row differently, and a single query head."""

VARIANTS = ("float32", "float64", "half")


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    """make_model(shape, variant): one of SHAPES in one of VARIANTS, made once."""
    folder = tmp_path_factory.mktemp("shapes")
    made: dict[tuple[str, str], HybridModel] = {}

    def make(shape: str, variant: str) -> HybridModel:
        if (shape, variant) not in made:
            path: Path = folder / f"{shape}.gguf"
            if not path.exists():
                write_tiny_model(path, **SHAPES[shape])
            dtype = torch.float64 if variant == "float64" else torch.float32
            made[shape, variant] = HybridModel.load(ModelFile.open(path), dtype=dtype, half_weights=variant == "half")
        return made[shape, variant]

    return make


@pytest.fixture(scope="session")
def model(make_model: ModelMaker) -> HybridModel:
    return make_model("default", "float32")


@pytest.fixture(scope="session")
def exact_model(make_model: ModelMaker) -> HybridModel:
    return make_model("default", "float64")
