"""Worker processes that read corpus parts and hand over batches of training windows."""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import TrainingError
from models.files import File, read_files
from models.tokenizer_file import load_tokenizer
from models.windows import WindowBuilder, groups

PATIENCE = 180.0
"""Seconds to wait for a batch: the workers read whole parts first."""


def passes(parts: Sequence[Path], seed: int, worker: int, workers: int) -> Iterator[list[File]]:
    """This worker's share of the text for ever, in groups of files; all workers' shares together are all of it.

    A pass reads the part that was read least so far, in a new order; a part that is not there yet joins when its file
    appears.
    """
    loaded: dict[Path, list[File]] = {}
    count = dict.fromkeys(parts, 0)
    while True:
        part = min((p for p in parts if p.exists()), key=lambda p: count[p])
        if part not in loaded:
            loaded[part] = list(read_files(part))
        yield from groups(loaded[part], random.Random(seed * 7919 + count[part]))[worker::workers]
        count[part] += 1


def produce(
    out: Any,
    parts: Sequence[Path],
    tokenizer: Path,
    length: int,
    batch: int,
    seed: int,
    worker: int,
    workers: int,
) -> None:
    """Puts batches into the queue ``out`` for ever: this worker's share of the text, with new holes in each pass."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for every core already
    rng = random.Random(seed * 1000 + worker)
    builder = WindowBuilder(load_tokenizer(tokenizer), length, rng)
    waiting: list[list[int]] = []
    for number, group in enumerate(passes(parts, seed, worker, workers), start=1):
        builder.add(group)
        if number % 40:
            continue
        waiting += builder.windows()
        rng.shuffle(waiting)
        while len(waiting) >= batch * 4:  # what stays behind is mixed with what comes
            out.put(np.array(waiting[:batch], dtype=np.int16))
            del waiting[:batch]


class Batches:
    """Iterates over int16 arrays [batch, length + 1]. Start it before anything else starts threads: it forks."""

    def __init__(
        self, parts: Sequence[Path], tokenizer: Path, length: int, batch: int, seed: int, workers: int
    ) -> None:
        """Raises TrainingError when there is nothing to begin with."""
        if missing := [path for path in (parts[0], tokenizer) if not path.exists()]:
            raise TrainingError(f"{missing[0]} is missing; run models.corpus and models.train_tokenizer first")
        context = multiprocessing.get_context("fork")
        self.out: Any = context.Queue(maxsize=64)
        for worker in range(workers):
            arguments = (self.out, parts, tokenizer, length, batch, seed, worker, workers)
            context.Process(target=produce, args=arguments, daemon=True).start()

    def __iter__(self) -> Iterator[NDArray[np.int16]]:
        """Raises TrainingError when no batch comes for ``PATIENCE`` seconds."""
        while True:
            try:
                yield self.out.get(timeout=PATIENCE)
            except queue.Empty:
                raise TrainingError(
                    f"no training batch for {PATIENCE:.0f} s: the workers have died (see above) or have too little text"
                ) from None
