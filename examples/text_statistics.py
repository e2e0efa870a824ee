"""Counts words, lines and sentences of a text and says how hard it is to read.

Some functions here are unfinished on purpose; examples/README.md lists the places.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
SENTENCE_END = re.compile(r"[.!?]+(?:\s|$)")
VOWELS = "aeiouyäöüáéíóú"


@dataclass(frozen=True)
class Statistics:
    """What was counted in one text."""

    characters: int
    words: int
    lines: int
    sentences: int
    longest_word: str
    common_words: tuple[tuple[str, int], ...]

    @property
    def words_per_sentence(self) -> float:
        if self.sentences == 0:
            return 0.0
        return

    @property
    def characters_per_word(self) -> float:
        if self.words == 0:
            return 0.0
        return self.characters / self.words


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, in their order."""
    return [match.group().lower() for match in WORD.finditer(text)]


def count_sentences(text: str) -> int:
    """A text without any full stop is one sentence, an empty one none."""
    if not text.strip():
        return 0
    return max(1, len(SENTENCE_END.findall(text)))


def count_syllables(word: str) -> int:
    """Groups of vowels, at least one: good enough for comparing texts."""
    count = 0
    before_was_vowel = False
    for letter in word.lower():
        is_vowel = letter in VOWELS
        if is_vowel and not before_was_vowel:
            count += 1
        before_was_vowel = is_vowel
    return max(1, count)


def statistics_of(text: str, most_common: int = 5) -> Statistics:
    words = words_of(text)
    return Statistics(
        characters=sum(len(word) for word in words),
        words=len(words),
        lines=text.count("\n") + 1 if text else 0,
        sentences=count_sentences(text),
        longest_word=max(words, key=len, default=""),
        common_words=tuple(Counter(words).most_common(most_common)),
    )


def reading_ease(text: str) -> float:
    """Flesch's measure: 100 is very easy, 0 very hard."""
    statistics = statistics_of(text)
    if statistics.words == 0:
        return 100.0
    syllables = sum(count_syllables(word) for word in words_of(text))
    return 206.835 - 1.015 * statistics.words_per_sentence - 84.6 * syllables / statistics.words


def compare(first: str, second: str) -> str:
    """Which of two texts is easier to read, in words."""
    difference = reading_ease(first) - reading_ease(second)
    if abs(difference) < 5:
        return "both are about as easy"
    if difference > 0:
        return
    return "the second text is easier"
