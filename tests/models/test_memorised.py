"""Long copies of training text in what a model writes are found, wherever they stand."""

from __future__ import annotations

import random

import pytest

from models.memorised import BLOCK, Passages, normalised

RNG = random.Random(0)


def noise(size: int) -> str:
    return "".join(RNG.choice("abcdefghijklmnopqrstuvwxyz_().=") for _ in range(size))


@pytest.mark.parametrize("offset", [0, 1, BLOCK - 1, BLOCK, 777])
def test_a_copy_is_measured_in_full_wherever_it_begins(offset: int) -> None:
    copied = noise(160)
    passages = Passages([noise(40) + copied + noise(30), noise(200)])
    passages.look_in(noise(offset) + copied + noise(500), "pkg: a.py")
    assert passages.longest[0] == 160
    assert passages.longest[1] < BLOCK
    assert passages.sources == ["pkg: a.py", ""]


def test_every_copy_of_99_characters_is_found() -> None:
    for _ in range(60):
        copied = noise(2 * BLOCK - 1)
        passages = Passages([noise(20) + copied])
        passages.look_in(noise(RNG.randrange(200)) + copied + noise(RNG.randrange(200)), "x")
        assert passages.longest[0] >= 2 * BLOCK - 1


def test_runs_of_blanks_and_line_ends_count_as_one_blank() -> None:
    assert normalised("  a \n\n\t b\n") == "a b"
    words = [noise(7) for _ in range(30)]
    passages = Passages(["\n    ".join(words)])
    passages.look_in(" \t".join(words), "x")
    assert passages.longest[0] == len(" ".join(words))


def test_the_longest_copy_of_all_texts_counts() -> None:
    copied = noise(200)
    passages = Passages([copied])
    for size, source in ((120, "short"), (180, "long"), (150, "middle")):
        passages.look_in(noise(33) + copied[:size] + noise(33), source)
    assert (passages.longest, passages.sources) == ([180], ["long"])
