"""A small trained tokenizer and a little text, for the tests of everything that needs some."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.files import File
from models.train_tokenizer import train


def module(tag: str, functions: int = 20) -> str:
    """A plausible module; its names hold ``tag``."""
    return f'"""All about {tag}."""\n\n' + "".join(
        f"def {tag}_{word}(value: int, offset: int = {n}) -> int:\n"
        f"    # the {word} of {tag}\n"
        f"    total = value + offset\n"
        f"    if total > {n * 7}:\n"
        f"        total -= value\n"
        f"    return total\n\n\n"
        for n, word in enumerate("".join(chr(97 + int(d)) for d in str(k)) for k in range(functions))
    )


@pytest.fixture(scope="session")
def text_files() -> list[File]:
    """Eight packages of six files each."""
    return [
        File(f"pack{p}", f"pack{p}/part_{f}.py", module(f"p{p}f{f}", 10 + 4 * f)) for p in range(8) for f in range(6)
    ]


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory, text_files: list[File]) -> Path:
    """A ``tokenizer.json`` of 512 tokens."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train((file.text for file in text_files), 512).save(str(path))
    return path
