"""The texts that benchmarks work on."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.material import TYPINGS, corpus, cut_prompts, document, with_empty_line


class Characters:
    """A token is a character."""

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def test_the_corpus_holds_every_example_and_is_python() -> None:
    text = corpus()
    compile(text.replace("from __future__ import annotations\n", ""), "corpus", "exec")
    for word in ("class Inventory", "def order_quantity", "words_of"):
        assert word in text


def test_without_examples_the_error_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="source checkout"):
        corpus(tmp_path)


@pytest.mark.parametrize("tokens", [10, 25, 100])
def test_a_document_has_whole_lines_of_the_end_and_at_most_the_asked_tokens(tokens: int) -> None:
    text = "".join(f"line {i}\n" for i in range(9))
    found = document(Characters(), tokens, text)
    assert tokens - len("line 0\n") <= len(found) <= tokens
    assert (text * 9).endswith("\n" + found)


def test_prompts_end_before_an_indented_line_and_are_spread_over_the_text() -> None:
    text = "".join(f"def f{i}():\n\n    return {i}\n" for i in range(50))
    prompts = cut_prompts(text, 10, 100)
    assert len(set(prompts)) == 10
    for prompt in prompts:
        assert text.startswith(prompt)
        assert len(prompt) >= 100
        assert prompt.endswith("\n")
        assert text[len(prompt) :].startswith("    return")
    assert len(prompts[-1]) > 0.8 * len(text)


def test_too_many_prompts_for_a_text_are_refused() -> None:
    with pytest.raises(ValueError, match="1 places for 2"):
        cut_prompts("a:\n b\n", 2, 0)


def test_every_typing_has_its_place_and_together_they_are_long_enough() -> None:
    text = corpus()
    for typing in TYPINGS:
        opened, line = with_empty_line(text, typing.before)
        lines = opened.split("\n")
        assert lines[line] == ""
        assert lines[line + 1].startswith(typing.before)
        assert "\n".join(lines[:line] + lines[line + 1 :]) == text
        assert typing.text.isascii()
        assert "\n" not in typing.text
    assert sum(len(typing.text) for typing in TYPINGS) >= 100
    with pytest.raises(ValueError, match="begins with 'absent'"):
        with_empty_line(text, "absent")
