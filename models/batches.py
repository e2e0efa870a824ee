"""Worker processes that read corpus parts and hand over batches of training windows."""

from __future__ import annotations

import json
import lzma
import multiprocessing
import queue
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.windows import File, Markers, WindowBuilder, groups


def load_files(path: Path) -> list[File]:
    """The files of one corpus part (JSON lines, xz)."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [File(**json.loads(line)) for line in lines]


def load_tokenizer(path: Path) -> Any:
    """The training tokenizer; text that spells a special token stays text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def markers(tokenizer: Any) -> Markers:
    names = ("endoftext", "fim_prefix", "fim_middle", "fim_suffix", "repo_name", "file_sep")
    return Markers(*(tokenizer.token_to_id(f"<|{name}|>") for name in names))


def produce(
    out: Any,
    parts: list[Path],
    tokenizer_path: Path,
    length: int,
    batch: int,
    seed: int,
    worker: int,
    workers: int,
) -> None:
    """Builds batches for ever from this worker's share of the text, with new holes in each pass.

    A pass reads the part that was read least so far; a part that is not there yet joins when its file appears.
    """
    tokenizer = load_tokenizer(tokenizer_path)
    rng = random.Random(seed * 1000 + worker)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    builder = WindowBuilder(encode, markers(tokenizer), length, rng)
    loaded: dict[Path, list[File]] = {}
    passes = dict.fromkeys(parts, 0)
    waiting: list[list[int]] = []
    while True:
        part = min((p for p in parts if p.exists()), key=lambda p: passes[p])
        if part not in loaded:
            loaded[part] = load_files(part)
        order = groups(loaded[part], random.Random(seed * 7919 + passes[part]))[worker::workers]
        passes[part] += 1
        for start in range(0, len(order), 40):
            for group in order[start : start + 40]:
                builder.add(group)
            waiting += builder.windows()
            rng.shuffle(waiting)
            while len(waiting) >= batch * 4:
                out.put(np.array(waiting[:batch], dtype=np.int16))
                del waiting[:batch]


class Batches:
    """Iterates over int16 arrays [batch, length + 1]. Start it before anything else starts threads: it forks."""

    def __init__(self, parts: list[Path], tokenizer: Path, length: int, batch: int, seed: int, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self.out: Any = context.Queue(maxsize=64)
        for worker in range(workers):
            arguments = (self.out, parts, tokenizer, length, batch, seed, worker, workers)
            context.Process(target=produce, args=arguments, daemon=True).start()

    def __iter__(self) -> Iterator[NDArray[np.int16]]:
        while True:
            try:
                yield self.out.get(timeout=180)
            except queue.Empty:
                raise RuntimeError("no training batch for 180 s: the workers have died or lack text") from None
