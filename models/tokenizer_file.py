"""The trained ``tokenizer.json``: as metadata of a model file, and as the tokenizer that reads such metadata.

Training encodes with the class that inference uses, so the ids agree, and text that spells a special token stays text.
"""

from __future__ import annotations

import json
from pathlib import Path

from server.gguf.header import Value
from server.model.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, Tokenizer


def tokenizer_metadata(path: Path) -> dict[str, Value]:
    """``tokenizer.ggml.*`` from a HF ``tokenizer.json``. Raises ValueError when its ids have gaps."""
    content = json.loads(path.read_text(encoding="utf-8"))
    ids: dict[str, int] = dict(content["model"]["vocab"])
    added = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    ids |= added
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"{path}: the ids are not 0 to {len(tokens) - 1}; train the tokenizer again")
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_added_type(token) if token in added else NORMAL for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
    }


def _added_type(token: str) -> int:
    if token.startswith("[PAD"):
        return UNUSED
    return CONTROL if token.startswith("<|") else USER_DEFINED


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a HF ``tokenizer.json``, as a model file with it would give."""
    return Tokenizer.from_metadata(tokenizer_metadata(path), path)


def byte_lengths(path: Path) -> list[int]:
    """Bytes of text that each id of a ``tokenizer.json`` stands for; 0 for added tokens."""
    metadata = tokenizer_metadata(path)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    # One character of the byte-level alphabet is one byte.
    return [len(str(token)) if kind == NORMAL else 0 for token, kind in zip(tokens, types, strict=True)]
