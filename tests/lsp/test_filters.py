"""What is cut from a generated text before it is shown, and the reason when nothing is left."""

import pytest

from lsp.filters import Filtered, Surroundings, finish_item


def finish(text, prefix="", suffix="", paths=()):
    item = finish_item(text, Surroundings(prefix, suffix, paths))
    return item.reason if isinstance(item, Filtered) else item.text


@pytest.mark.parametrize("text", ["", " ", "\n", "\n    \n\t"])
def test_u09_nothing_but_blanks_is_empty(text):
    assert finish(text) == "empty"


def test_blanks_at_the_end_are_dropped_and_those_at_the_start_kept():
    assert finish("\n    return a  \n\n") == "\n    return a"


@pytest.mark.parametrize(
    "marker", ["<|fim_middle|>", "<|endoftext|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"]
)
def test_u04_an_item_ends_before_a_special_token(marker):
    assert finish(f"a + b{marker}c") == "a + b"
    assert finish(f"{marker}c") == "filtered:special_token"


def test_u04_a_document_that_writes_about_a_special_token_may_get_it():
    assert finish('"<|fim_middle|>"', prefix='MARKERS = ["<|fim_middle|>", ') == '"<|fim_middle|>"'
    assert finish('"<|fim_middle|>"', suffix="]  # <|fim_middle|>") == '"<|fim_middle|>"'


@pytest.mark.parametrize(
    "line", ["pkg/store.py", "# pkg/store.py", "diff --git a/x b/x", "--- a/x", "+++ b/x", "@@ -1,2 +1 @@"]
)
def test_u07_an_item_ends_before_a_path_line_or_a_diff_header(line):
    assert finish(f"a = 1\n{line}\nb = 2", paths=["pkg/store.py"]) == "a = 1"
    assert finish(f"{line}\nb = 2", paths=["pkg/store.py"]) == "filtered:path_line"


def test_u07_a_path_inside_a_line_and_a_diff_document_are_ordinary_text():
    assert finish("open('pkg/store.py')", paths=["pkg/store.py"]) == "open('pkg/store.py')"
    assert finish("pkg/store.py", prefix="name = ", paths=["pkg/store.py"]) == "pkg/store.py"
    assert finish("@@ -9 +9 @@\n-a", prefix="@@ -1 +1 @@\n-b\n") == "@@ -9 +9 @@\n-a"


def test_u02_an_item_that_says_the_next_line_again_ends_before_it():
    assert finish("a\n    return total", "    total = ", "\n    return total\n") == "a"
    assert finish("a\n\n    return total\n    more", "    total = ", "\n\n    return total\n") == "a"


def test_u02_an_item_equal_to_the_following_lines_is_dropped():
    assert finish("return total", "    ", "\n    return total\n\nx = 1") == "filtered:repeats_suffix"
    assert finish("x = 1\ny", "", "\nx = 1\ny = 2\n") == "filtered:repeats_suffix"


def test_u02_a_short_line_may_stand_twice_unless_all_that_follows_repeats():
    assert finish("a(\n    b\n)\nc = 3", "", "\n)\nd = 4") == "a(\n    b\n)\nc = 3"
    assert finish("b\n)", "a(\n    ", "\n)\n") == "b"


@pytest.mark.parametrize(
    ("prefix", "text", "suffix", "expected"),
    [
        ("f(", "a, b)", ")", "a, b"),
        ("f(", "g(a))", ")", "g(a)"),
        ("f(", "g()", ")", "g()"),
        ('print("', 'hello")', '")', "hello"),
        ("f(", "a)", "):", "a"),
        ("x = [", "1, 2]", "]", "1, 2"),
        ("x = ", "a + b", " + b", "a"),
        ("f(", ")", ")", "filtered:repeats_line"),
        ("if ", "(a or b)", ":", "(a or b)"),
        ("x = f(a", ", b)", "", ", b)"),
    ],
)
def test_u02_what_stands_after_the_cursor_is_not_inserted_again(prefix, text, suffix, expected):
    assert finish(text, prefix, suffix) == expected
