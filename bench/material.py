"""The texts a benchmark works on: made of the files in examples/, which are in no training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

EXAMPLES = Path(__file__).parent.parent / "examples"


class Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def corpus(folder: Path = EXAMPLES) -> str:
    """All example files, one after another, the first by name last. Raises FileNotFoundError without any."""
    files = sorted(folder.glob("*.py"), reverse=True)
    if not files:
        raise FileNotFoundError(f"there are no Python files in {folder}; the benchmark needs a source checkout")
    return "\n\n".join(file.read_text(encoding="utf-8").strip("\n") for file in files) + "\n"


def document(encoder: Encoder, tokens: int, text: str) -> str:
    """The last whole lines of ``text`` that have about ``tokens`` tokens together; repeated where it is too short."""
    ids = encoder.encode(text)
    ids = ids * -(-tokens // len(ids))
    return encoder.decode(ids[-tokens:]).partition("\n")[2]


def cut_prompts(text: str, count: int, shortest: int) -> list[str]:
    """``count`` beginnings of ``text``, each ending before an indented line, evenly spread from ``shortest``
    characters on: inside a function or a class there is more to come. Raises ValueError when there are fewer."""
    places: list[int] = []
    position = 0
    for line in text.splitlines(keepends=True):
        if position >= shortest and line.strip() and line[0] == " ":
            places.append(position)
        position += len(line)
    if len(places) < count:
        raise ValueError(f"the text has {len(places)} places for {count} prompts")
    return [text[: places[index * len(places) // count]] for index in range(count)]


@dataclass(frozen=True)
class Typing:
    """Someone types ``text`` at the start of an empty line that is put before the line ``before`` of the document.

    The lines are headers of functions and the like: what follows is long, and hard to guess, so that most keystrokes
    leave the shown item and need the engine.
    """

    before: str
    text: str


TYPINGS = (
    Typing("    def total_value(", "    def cheapest_on(self, shelf: str, limit: int = 10) -> list[Article]:"),
    Typing("class NotEnoughError(", "def parse_article(line: str, separator: str = ';') -> Article:"),
    Typing("    def on_shelf(", "    def rename(self, number: str, name: str) -> None:"),
    Typing("def print_orders(", "def write_orders(path: Path, inventory: Inventory, encoding: str = 'utf-8') -> int:"),
    Typing("def reading_ease(", "def longest_words(text: str, count: int, smallest: int = 3) -> list[str]:"),
)


def with_empty_line(text: str, before: str) -> tuple[str, int]:
    """The text with an empty line put before the first that begins with ``before``, and that line's number from 0.

    Raises ValueError when no line does.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(before):
            return "\n".join([*lines[:number], "", *lines[number:]]), number
    raise ValueError(f"the text has no line that begins with {before!r}")
