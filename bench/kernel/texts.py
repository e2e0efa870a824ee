"""The tokens that accuracy is measured along."""

from __future__ import annotations

import random
from pathlib import Path

from server.gguf.errors import ModelFileError
from server.gguf.reader import ModelFile
from server.model.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
FOLDERS = ("server", "lsp", "prompts", "bench")


def has_real_weights(file: ModelFile) -> bool:
    """Whether a text means anything to it: models with random weights say that they are, or have no vocabulary."""
    synthetic = file.metadata.get("draftline.synthetic") is True
    return not synthetic and file.metadata.get("tokenizer.ggml.model", "none") != "none"


def windows(file: ModelFile, text: Path | None, positions: int, length: int, vocab: int) -> tuple[list[list[int]], str]:
    """Sequences of `length` tokens, the last one perhaps shorter, `positions` in all or as many as there are, and where
    they come from.

    Raises OSError for a text that can't be read, ValueError for one that is empty or not text, or a vocabulary that
    can't be read.
    """
    if not has_real_weights(file):
        choose = random.Random(1)
        ids, source = [choose.randrange(vocab) for _ in range(positions)], "random tokens, as the weights are random"
    else:
        parts = [text] if text else [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
        source = str(text) if text else "this repository's own Python files, no other text was given"
        try:
            tokenizer = Tokenizer.from_file(file)
        except ModelFileError as error:
            raise ValueError(str(error)) from None
        ids = []
        for path in parts:
            ids += tokenizer.encode(path.read_text(encoding="utf-8"))
            if len(ids) >= positions:
                break
        if not ids:
            raise ValueError(f"{source}: there is no text")
    ids = ids[:positions]
    return [ids[first : first + length] for first in range(0, len(ids), length)], source
