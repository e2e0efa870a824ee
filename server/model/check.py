"""Whether a model file would load, told from its header and from its bytes as they are: nothing is dequantised."""

from __future__ import annotations

import torch

from server.gguf.reader import ModelFile
from server.model.config import ModelConfig
from server.model.damage import check_bytes, check_zeros
from server.model.tokenizer import Tokenizer
from server.model.weights import WeightReader

MOST_BYTES = 2_000_000_000
"""Of tensors that are read for it; more may take minutes from a slow disk."""


def check_model(file: ModelFile) -> bool:
    """The loader's checks, in its order, and the damage that shows in the bytes. False: too large to look for damage.

    Raises the errors of `ModelConfig.from_file`, `Tokenizer.from_file` and `WeightReader`.
    """
    config = ModelConfig.from_file(file)
    Tokenizer.from_file(file)
    reader = WeightReader(file, config, torch.device("meta"), torch.float32, half=False)
    reader.read(None)
    names = dict.fromkeys(reader.names)
    if sum(file.info(name).nbytes for name in names) > MOST_BYTES:
        return False
    for name in names:
        check_zeros(file, name)
        check_bytes(file, name)
    return True
