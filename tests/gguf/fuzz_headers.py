"""Opens damaged model files one after the other: run as a child process by test_fuzz.py, with little memory.

    python fuzz_headers.py MODEL... --first N --count N --folder DIR

Mutant i is the same in every run. Each has 2 seconds of processor time, so that a busy machine is no fault; past them
a signal ends the process, and DIR/current (the mutant's number) and DIR/mutant.gguf remain. What isn't success or a
ModelFileError is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from server.gguf import header
from server.gguf.errors import ModelFileError
from server.gguf.reader import ModelFile
from server.model.config import ModelConfig

SECONDS = 2.0
SPARE_MEMORY = 512 << 20  # bytes of address space beyond what the imports take

Field = tuple[int, int]  # offset and bytes of a number in a header


class Base:
    """A sound file: its header, where the numbers in it are, and how long the file is."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        fields: list[Field] = []
        number = header._Cursor.number

        def noted(cursor: header._Cursor, format: str, what: str) -> int:
            fields.append((cursor.at, struct.calcsize(format)))
            return number(cursor, format, what)

        header._Cursor.number = noted  # type: ignore[method-assign]
        try:
            found = header.read_header(path, data)
        finally:
            header._Cursor.number = number  # type: ignore[method-assign]
        self.fields = fields
        self.header = data[: min(tensor.offset for tensor in found.tensors.values())]
        self.size = len(data)


def blown_up(random: random.Random, data: bytearray, base: Base) -> None:
    """A count, length, type, dimension or offset takes a value that a careless reader trips over."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at, size = random.choice(base.fields)
        top = 1 << 8 * size
        values = (0, 1, 2, 255, top - 1, top // 2, top // 2 - 1, 1 << 20, 1 << 31, 1 << 40, random.randrange(top))
        data[at : at + size] = (random.choice(values) % top).to_bytes(size, "little")


def nudged(random: random.Random, data: bytearray, base: Base) -> None:
    """A number is off by a little: types become other types, shapes other shapes, everything after shifts."""
    at, size = random.choice(base.fields)
    value = int.from_bytes(data[at : at + size], "little") + random.choice((-32, -8, -2, -1, 1, 2, 3, 8, 32))
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


def flipped(random: random.Random, data: bytearray, base: Base) -> None:
    for _ in range(random.randint(1, 8)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def replaced(random: random.Random, data: bytearray, base: Base) -> None:
    for _ in range(random.randint(1, 4)):
        data[random.randrange(len(data))] = random.randrange(256)


def moved(random: random.Random, data: bytearray, base: Base) -> None:
    """A piece is written over another place, or in between."""
    start, to, length = random.randrange(len(data)), random.randrange(len(data)), random.randint(1, 64)
    data[to : to + random.choice((0, length))] = data[start : start + length]


def cut(random: random.Random, data: bytearray, base: Base) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.randint(1, 64)]


def emptied(random: random.Random, data: bytearray, base: Base) -> None:
    start, length = random.randrange(len(data)), random.randint(1, 64)
    data[start : start + length] = bytes(len(data[start : start + length]))


MUTATIONS: tuple[Callable[[random.Random, bytearray, Base], None], ...] = (
    blown_up,
    blown_up,
    nudged,
    nudged,
    flipped,
    replaced,
    moved,
    cut,
    emptied,
)


def mutant(number: int, bases: list[Base]) -> tuple[bytes, int]:
    """(header, file size) of the mutant: the tensors are a hole of zeros behind the header."""
    choice = random.Random(number)
    base = choice.choice(bases)
    data, size = bytearray(base.header), base.size
    kind = choice.randrange(10)
    if kind == 0:
        size = choice.randrange(len(data) + 1)
    elif kind == 1:
        size = choice.choice((choice.randrange(size), size - 1, size + (64 << 20)))
    if kind != 0:
        for _ in range(choice.choice((1, 1, 1, 2, 4))):
            choice.choice(MUTATIONS)(choice, data, base)
    return bytes(data[:size]), max(size, 0)


def use(path: Path, number: int) -> None:
    """What an engine does with a file: open, read the model's dimensions, read tensors."""
    file = ModelFile.open(path)
    names = list(file.tensors)
    for name in random.Random(number).sample(names, min(2, len(names))):
        assert file.tensor(name).isfinite().all()  # zeros stay zeros whatever the type
    ModelConfig.from_file(file)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    bases = [Base(path) for path in arguments.models]
    with Path("/proc/self/statm").open() as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_MEMORY,) * 2)

    path = arguments.folder / "mutant.gguf"
    outcomes: Counter[str] = Counter()
    failures = 0
    current = os.open(arguments.folder / "current", os.O_RDWR | os.O_CREAT)
    for number in range(arguments.first, arguments.first + arguments.count):
        os.pwrite(current, b"%10d\n" % number, 0)
        data, size = mutant(number, bases)
        path.unlink(missing_ok=True)
        with path.open("wb") as file_:
            file_.write(data)
            file_.truncate(size)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            use(path, number)
            outcomes["opened"] += 1
        except ModelFileError as error:
            outcomes[type(error).__name__ if str(path) in str(error) else "error that doesn't name the file"] += 1
        except BaseException as error:
            failures += 1
            print(f"mutant {number}: {type(error).__name__}: {error}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
    print(dict(outcomes.most_common()))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
