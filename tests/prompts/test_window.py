"""What goes into a completion's prompt: everything that fits, in an order in which typing only appends."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import write_tiny_model

from prompts.budget import Budget, NoPromptBudget
from prompts.ledger import Ledger
from prompts.text import Cursor, SourceFile, SourceText, byte_length
from prompts.window import PrefixWindow
from server.gguf.reader import ModelFile
from server.model.tokenizer import Tokenizer

LINES = [f"    value_{n} = compute({n})" for n in range(2000)]


def source(text, path="a.py"):
    return SourceFile(path, SourceText.from_text(text))


def joined(segments, *roles):
    return "".join(segment.text for segment in segments if segment.role in roles)


def completion_segments(*parts, **more):
    """The prompt of a workspace that was asked nothing before."""
    return Ledger().prompt(*parts, **more).segments


def prompt(segments):
    """What the engine's cache compares: everything in its order."""
    return [(segment.role, segment.path, segment.text) for segment in segments]


def size(segments):
    return sum(byte_length(segment.text) for segment in segments)


@given(text=st.text(st.sampled_from("ab é漢😀\n"), max_size=400), data=st.data())
def test_u20_without_other_sources_the_prompt_is_the_document_byte_for_byte(text, data):
    lines = text.split("\n")
    line = data.draw(st.integers(0, len(lines) - 1))
    cursor = Cursor(line, data.draw(st.integers(0, len(lines[line]))))
    segments = completion_segments(source(text, None), cursor)
    assert joined(segments, "prefix") + joined(segments, "suffix") == text
    assert joined(segments, "prefix") == "\n".join([*lines[:line], lines[line][: cursor.column]])
    assert {segment.role for segment in segments} <= {"prefix", "suffix"}
    assert all(segment.path is None for segment in segments)


def test_the_suffix_stands_first_and_the_prefix_ends_at_the_cursor():
    segments = completion_segments(source("a = 1\nb = \nc = 3\n"), Cursor(1, 4))
    assert [(s.role, s.text, s.path) for s in segments] == [
        ("suffix", "\nc = 3\n", "a.py"),
        ("prefix", "a = 1\n", None),
        ("prefix", "b = ", None),
    ]
    assert all(segment.checkpoint for segment in segments)


def test_the_prefix_is_parted_some_lines_above_the_cursor_at_a_line_with_text():
    lines = LINES[:30]
    lines[16] = lines[15] = ""
    segments = completion_segments(source("\n".join(lines)), Cursor(22, 3))
    far, near, own = (segment for segment in segments if segment.role == "prefix")
    assert far.text == "\n".join(lines[:14]) + "\n"
    assert near.text == "\n".join(lines[14:22]) + "\n"
    assert own.text == lines[22][:3]
    assert far.checkpoint
    assert near.checkpoint
    assert own.checkpoint


def type_text(lines, cursor, typed):
    """Yields (text, cursor) after each typed character."""
    lines = list(lines)
    line, column = cursor.line, cursor.column
    for character in typed:
        if character == "\n":
            lines[line : line + 1] = [lines[line][:column], lines[line][column:]]
            line, column = line + 1, 0
        else:
            lines[line] = lines[line][:column] + character + lines[line][column:]
            column += 1
        yield "\n".join(lines), Cursor(line, column)


@pytest.mark.parametrize("count", [20, 2000])
def test_typing_appends_to_the_prompt_and_changes_nothing_before(count):
    others = [source("x = 1\n" * 50, "b.py"), source("y = 2\n" * 70, "c.py")]
    window = PrefixWindow()
    before = None
    for text, cursor in type_text(LINES[:count], Cursor(count // 2, 4), "if a:\n    b = call(c)\n    return b\n" * 3):
        segments = completion_segments(source(text), cursor, others, Budget(1500), window=window)
        fixed = [part for part in prompt(segments) if part[0] != "prefix"]
        prefix = joined(segments, "prefix")
        if before is not None:
            assert fixed == before[0]
            assert prefix.startswith(before[1])
        before = fixed, prefix


def test_the_window_rests_while_the_cursor_stays_in_its_middle_half_and_moves_when_it_leaves():
    window, budget = PrefixWindow(), Budget(1000)
    text = source("\n".join(LINES))
    completion_segments(text, Cursor(1000, 0), budget=budget, window=window)
    first = window.first_line
    assert 0 < first < 1000
    for line in (1010, 995, 1020):
        completion_segments(text, Cursor(line, 0), budget=budget, window=window)
        assert window.first_line == first
    for line in (1200, first + 3):
        completion_segments(text, Cursor(line, 0), budget=budget, window=window)
        assert window.first_line != first
        first = window.first_line


def test_the_window_follows_its_text_when_lines_above_it_come_and_go():
    window = PrefixWindow(first_line=100)
    window.lines_replaced(10, removed=1, added=4)
    assert window.first_line == 103
    window.lines_replaced(50, removed=10, added=1)
    assert window.first_line == 94
    window.lines_replaced(94, removed=1, added=9)
    assert window.first_line == 94
    window.lines_replaced(90, removed=10, added=2)
    assert window.first_line == 90


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(40, 4000),
    line=st.integers(0, 1999),
    others=st.lists(st.integers(1, 900), max_size=5),
    wide=st.booleans(),
)
def test_a_prompt_never_exceeds_its_budget(tokens, line, others, wide):
    lines = [text.replace("value", "値") for text in LINES] if wide else LINES
    files = [source("\n".join(LINES[:n]) + "\n", f"{i}.py") for i, n in enumerate(others)]
    budget = Budget(tokens, bytes_per_token=2.5)
    segments = completion_segments(source("\n".join(lines)), Cursor(line, 7), files, budget)
    assert size(segments) <= budget.bytes
    if 300 < line < 1700 and tokens > 200:
        assert size(segments) > budget.bytes * 0.4
    assert joined(segments, "prefix").endswith(lines[line][:7])


def test_the_suffix_takes_a_quarter_at_most_and_ends_with_a_whole_line():
    segments = completion_segments(source("\n".join(LINES)), Cursor(1000, 0), budget=Budget(1000))
    suffix = joined(segments, "suffix")
    assert 600 < len(suffix) <= 750
    assert suffix.split("\n") == LINES[1000 : 1000 + len(suffix.split("\n"))]


def test_other_files_keep_their_order_and_the_least_recently_used_gives_way():
    files = [source(f"{name} = 1\n" * 40, f"{name}.py") for name in "abcdefgh"]
    segments = completion_segments(source("x"), Cursor(0, 1), files, Budget(500), repository="shop")
    paths = [segment.path for segment in segments if segment.role == "file"]
    assert paths == sorted(paths)
    assert paths[-1] == "h.py"
    assert "a.py" not in paths
    assert segments[0].role == "repo"
    assert segments[0].text == "shop"
    cut = next(segment for segment in segments if segment.role == "file")
    assert cut.text.endswith("\n")
    assert all(segment.checkpoint for segment in segments if segment.role == "file")


def test_other_files_get_a_share_when_the_current_one_is_large():
    files = [source("b = 1\n" * 30, "b.py")]
    segments = completion_segments(source("\n".join(LINES)), Cursor(1000, 0), files, Budget(1000))
    assert [segment.text for segment in segments if segment.role == "file"] == ["b = 1\n" * 30]


@pytest.mark.parametrize("character", ["x", "漢"])
def test_a_line_longer_than_the_window_is_cut_at_both_ends_and_typing_in_it_appends(character):
    budget = Budget(300)
    line = character * 60_000
    before = None
    moved = 0
    for column in range(30_000, 30_200):
        segments = completion_segments(source(line), Cursor(0, column), budget=budget, window=PrefixWindow())
        prefix = joined(segments, "prefix")
        assert size(segments) <= budget.bytes
        assert len(prefix) > 50
        if before is not None and prefix != before + character:
            moved += 1
        before = prefix
    assert moved <= 2


def test_text_after_the_cursor_in_the_same_line_is_suffix():
    segments = completion_segments(source("call(a, b)"), Cursor(0, 5))
    assert joined(segments, "suffix") == "a, b)"
    assert joined(segments, "prefix") == "call("


@pytest.mark.parametrize("tokens", [0, -12])
def test_u05_a_budget_of_zero_or_less_is_an_error_that_says_so(tokens):
    with pytest.raises(NoPromptBudget, match=f"budget is {tokens} tokens"):
        completion_segments(source("a"), Cursor(0, 0), budget=Budget(tokens))


def test_u27_a_lone_surrogate_becomes_a_replacement_character_that_can_be_sent():
    segments = completion_segments(source("a\ud800b"), Cursor(0, 2))
    assert joined(segments, "prefix", "suffix").encode()
    assert joined(segments, "prefix") == "a\ufffd"


def test_a_cursor_outside_the_text_means_its_nearest_place():
    assert joined(completion_segments(source("ab"), Cursor(7, 9)), "prefix") == "ab"


@pytest.mark.parametrize("tokens", range(400, 440, 7))
def test_a_small_file_is_whole_however_much_stands_in_the_others(tokens):
    files = [source("b = 1\n" * 900, "b.py")]
    segments = completion_segments(source("x = 1\ny = "), Cursor(1, 4), files, Budget(tokens))
    assert joined(segments, "prefix") == "x = 1\ny = "


def test_the_parts_of_a_prefix_have_the_tokens_of_the_whole(tmp_path):
    tokenizer = Tokenizer.from_file(ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf")))
    chance = random.Random(1)
    for path in sorted((Path(__file__).parents[2] / "prompts").glob("*.py")):
        text = source(path.read_text(encoding="utf-8"))
        for _ in range(25):
            line = chance.randrange(len(text.text.lines))
            cursor = Cursor(line, chance.randint(0, len(text.text.lines[line])))
            parts = [s.text for s in completion_segments(text, cursor, budget=Budget(800)) if s.role == "prefix"]
            assert [i for part in parts for i in tokenizer.encode(part)] == tokenizer.encode("".join(parts))
