"""One file of the corpus, and the JSON lines that corpus parts are kept in."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class File:
    """A Python file: the package it comes from, its path when installed, its text with LF line ends."""

    package: str
    path: str
    text: str


def read_files(part: Path) -> Iterator[File]:
    """Yield the files of a corpus part, compressed (``.xz``) or not."""
    with lzma.open(part, "rt", encoding="utf-8") if part.suffix == ".xz" else part.open(encoding="utf-8") as lines:
        for line in lines:
            yield File(**json.loads(line))


def write_files(files: Iterable[File], part: Path) -> None:
    """Write an uncompressed corpus part."""
    with part.open("w", encoding="utf-8", newline="\n") as out:
        for file in files:
            out.write(json.dumps(asdict(file), ensure_ascii=False) + "\n")
