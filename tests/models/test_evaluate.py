"""The evaluation's arithmetic, its prompts, and one whole run with a small model."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from models.evaluate import DEPTH, Evaluation, FixedDepth, Tally, main, report, windows
from models.export import export
from models.files import File, write_files
from models.network import REHEARSAL, initial_weights
from models.spans import Span, rest_of_line_spans
from models.tokenizer_file import load_tokenizer
from server.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model_path(tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    dims = replace(REHEARSAL, vocab=512)
    export(initial_weights(dims, 0), tokenizer_path, path, dims)
    return path


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_path)


@pytest.fixture(scope="module")
def evaluation(model_path: Path) -> Evaluation:
    return Evaluation(model_path, "cpu", budget=200)


def test_tallies_of_several_processes_add_up() -> None:
    one = Tally(spans=3, exact=1, accepted=(4, 2, 1), nats=1.5)
    two = Tally(spans=2, exact=2, accepted=(1, 1, 1), nats=0.5, bytes=7)
    assert sum([one, two], Tally()) == Tally(spans=5, exact=3, accepted=(5, 3, 2), nats=2.0, bytes=7)


def test_the_report_divides_what_was_counted() -> None:
    tally = Tally(
        spans=5,
        exact=3,
        exact_from_indent=2,
        short=4,
        short_ended=3,
        continuations=10,
        repeating=1,
        cycles=8,
        tokens=20,
        steady_cycles=4,
        steady_tokens=9,
        accepted=(6, 4, 2),
        nats=20 * math.log(2),
        bytes=10,
        compared_nats=16 * math.log(2),
    )
    figures = report(tally, argparse.Namespace(compare=Path("other.gguf")))
    assert figures == pytest.approx(
        {
            "bits per byte": 2.0,
            "bits per byte, compared file": 1.6,
            "quantisation costs, %": 25.0,
            "rest-of-line exact match, %": 60.0,
            "  from the first character, %": 100 * 2 / 3,
            "  from a column inside, %": 50.0,
            "answers the model ends itself, %": 75.0,
            "tokens per cycle, 3 drafts": 2.5,
            "  accepted at position 1, %": 75.0,
            "  accepted at position 2, %": 50.0,
            "  accepted at position 3, %": 25.0,
            "continuations that repeat, %": 10.0,
            "tokens per cycle, the others": 2.25,
        }
    )
    assert report(Tally(), argparse.Namespace(compare=None)) == {}


def test_the_depth_is_fixed() -> None:
    depth = FixedDepth(DEPTH)
    assert [depth.another([None] * drafted) for drafted in range(5)] == [True, True, True, False, False]


def test_windows_are_the_texts_in_a_row_and_share_their_border_token(tokenizer: Tokenizer) -> None:
    files = [File("p", f"{n}.py", f"value_{n} = {n}\n" * 30) for n in range(5)]
    end = tokenizer.special("<|endoftext|>")
    stream = [end, *(i for file in files for i in [*tokenizer.encode(file.text), end])]
    expected = [stream[i : i + 65] for i in range(0, len(stream) - 1, 64)]
    assert all(a[-1] == b[0] for a, b in pairwise(expected))
    assert sorted(windows(files, tokenizer, 64, 1000)) == sorted(expected)


def test_fewer_windows_come_from_all_over_the_text_the_same_every_time(tokenizer: Tokenizer) -> None:
    files = [File("p", f"{n}.py", f"value_{n} = {n}\n" * 30) for n in range(20)]
    found = windows(files, tokenizer, 64, 10)
    assert found == windows(files, tokenizer, 64, 10)
    assert len(found) == 10
    assert len({tokenizer.decode(window).split(" = ")[1].split("\n")[0] for window in found}) > 5


def test_a_prompt_keeps_to_its_budget_and_ends_at_the_cursor(evaluation: Evaluation) -> None:
    text = "".join(f"line_{n} = {n}\n" for n in range(400))
    middle = text.index("line_200")
    span = Span("p/a.py", text[:middle], text[middle : middle + 14], text[middle + 14 :])
    tokenizer = evaluation.tokenizer
    ids = evaluation.prompt(span, plain=False)
    assert 120 < len(ids) <= 200
    assert tokenizer.decode(ids).endswith("line_199 = 199\n")
    assert ids[0] == tokenizer.special("<|file_sep|>")
    assert ids[-1] == tokenizer.special("<|fim_middle|>")
    after, before = ids.index(tokenizer.special("<|fim_suffix|>")), ids.index(tokenizer.special("<|fim_prefix|>"))
    assert 20 < before - after <= 51
    plain = evaluation.prompt(span, plain=True)
    assert len(plain) <= 200
    assert tokenizer.decode(plain).endswith("line_199 = 199\n")


def test_the_negative_log_likelihood_is_that_of_every_next_token(evaluation: Evaluation) -> None:
    window = evaluation.tokenizer.encode("def f(x):\n    return x + 1\n")
    hidden = evaluation.model.prefill(window[:-1], evaluation.model.new_state())
    chosen = torch.log_softmax(evaluation.model.logits(hidden), -1)[range(len(window) - 1), window[1:]]
    assert evaluation.nats(window) == pytest.approx(-float(chosen.sum()), rel=1e-5)


class Answers(Evaluation):
    """An evaluation whose model always answers the same."""

    def __init__(self, tokenizer: Tokenizer, text: str, *, ended: bool) -> None:
        self.tokenizer, self.budget = tokenizer, 200
        end = tokenizer.special("<|endoftext|>")
        assert end is not None
        self.tokens = tokenizer.encode(text) + ([end] if ended else [])

    def answer(self, ids: list[int], tally: Tally, *, ends: bool = True) -> list[int]:
        return self.tokens


@pytest.mark.parametrize(
    ("answer", "ended", "exact"),
    [("return x", True, 1), ("return x  ", True, 1), ("return x\nmore", False, 1), ("return x1", True, 0)],
)
def test_a_match_is_the_first_line_without_trailing_blanks(
    tokenizer: Tokenizer, answer: str, ended: bool, exact: int
) -> None:
    span = Span("a.py", "def f(x):\n    ", "return x ", "\n")
    tally = Tally()
    Answers(tokenizer, answer, ended=ended).rest_of_line(span, 0, tally)
    assert (tally.spans, tally.exact, tally.exact_from_indent) == (1, exact, exact)
    assert (tally.short, tally.short_ended) == (1, int(ended))
    Answers(tokenizer, answer, ended=ended).rest_of_line(span, 1, tally)
    assert (tally.spans, tally.exact, tally.exact_from_indent) == (2, 2 * exact, exact)


def test_only_middles_of_at_most_32_tokens_count_for_the_end(tokenizer: Tokenizer) -> None:
    span = Span("a.py", "x = ", "+".join("abcdefghijklmnopqrstuvwxyz"), "\n")
    tally = Tally()
    Answers(tokenizer, "1", ended=True).rest_of_line(span, 0, tally)
    assert (tally.spans, tally.short) == (1, 0)


class Counted(Answers):
    """Counts two cycles and five tokens for every answer."""

    def answer(self, ids: list[int], tally: Tally, *, ends: bool = True) -> list[int]:
        tally.cycles += 2
        tally.tokens += 5
        return super().answer(ids, tally, ends=ends)


def test_cycles_of_continuations_that_repeat_are_told_apart(tokenizer: Tokenizer) -> None:
    span, tally = Span("a.py", "x = 1\n", "y", "\n"), Tally()
    Counted(tokenizer, "value = {}\n" * 20, ended=False).continuation(span, tally)
    Counted(tokenizer, "abcdefghijklmnop\n", ended=False).continuation(span, tally)
    Counted(tokenizer, "ponmlkjihgfedcba\n", ended=False).continuation(span, tally)
    assert (tally.continuations, tally.repeating) == (3, 1)
    assert (tally.cycles, tally.tokens, tally.steady_cycles, tally.steady_tokens) == (6, 15, 4, 10)


def test_an_answers_cycles_are_counted_where_three_drafts_were_made(evaluation: Evaluation) -> None:
    tally = Tally()
    tokens = evaluation.answer(evaluation.tokenizer.encode("def f(x):\n"), tally, ends=False)
    assert len(tokens) == 64
    assert tally.cycles > 0
    assert tally.tokens == tally.cycles + sum(tally.accepted)
    assert 60 <= 1 + tally.tokens + 3 <= 68
    assert list(tally.accepted) == sorted(tally.accepted, reverse=True)


def test_the_command_prints_the_figures(
    model_path: Path,
    text_files: list[File],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_files(text_files, tmp_path / "heldout.jsonl")
    command = ["evaluate", "--model", str(model_path), "--compare", str(model_path), "--device", "cpu"]
    command += ["--heldout", str(tmp_path / "heldout.jsonl"), "--spans", "3", "--cursors", "1", "--windows", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--budget", "160", "--json", str(tmp_path / "figures.json")])
    main()
    said = capsys.readouterr().out
    assert "3 spans, 1 continuations" in said
    assert "quantisation costs, %                  0.0000" in said
    assert "accepted at position 3" in said
    assert len(rest_of_line_spans(text_files, 3, 1)) == 3
    assert (tmp_path / "figures.json").exists()
