"""The memory of items: found again only for the very text and context they were made from."""

import pytest

from lsp.items import CAPACITY, CUT_FROM, Item, ItemMemory, item_key
from prompts.segments import Segment


def key(other="import a", uri="file:///a.py", tokens=64):
    segments = (
        Segment("file", other, "open file", "b.py"),
        Segment("suffix", "ignored", "current", "a.py"),
        Segment("prefix", "ignored", "current"),
    )
    return item_key(uri, segments, tokens)


def rest(prefix, suffix, *, made=("x = ", "\nafter"), text="compute(a, b)", replaces=0):
    """What is left, in another state of the document, of an item that was made in the state ``made``."""
    memory = ItemMemory()
    memory.put(key(), *made, Item(text, replaces))
    found = memory.get(key(), prefix, suffix)
    return (found[0].text, found[0].replaces) if found else None


def test_u14_typing_along_an_item_keeps_the_rest():
    assert rest("x = ", "\nafter") == ("compute(a, b)", 0)
    assert rest("x = comp", "\nafter") == ("ute(a, b)", 0)
    for other in ("x = compute(a, b)", "x = con", "x =", "y = "):
        assert rest(other, "\nafter") is None


@pytest.mark.parametrize(
    ("prefix", "suffix", "left"),
    [
        ("x = compute(", ")\nafter", ("a, b", 0)),
        ("x = compute(a, b", ")\nafter", None),  # typed to its end: the bracket is there
        ("x = compute(a, b)", "\nafter", None),
        ("x = compute(", "]\nafter", ("a, b)", 1)),
        ("x = compute(", "more)\nafter", None),
    ],
)
def test_u14_a_bracket_that_the_editor_closed_by_itself_is_part_of_the_item(prefix, suffix, left):
    assert rest(prefix, suffix) == left


def test_u14_quotes_and_a_broken_line_between_brackets_too():
    assert rest('x = "', '"\nafter', text='"hello")') == ('hello")', 1)
    assert rest("f() {\n    ", "\n}\nafter", made=("f() ", "\nafter"), text="{\n    go();\n}") == ("go();", 0)


def test_u14_a_closing_bracket_that_is_typed_over_takes_nothing_away():
    made = ("f(", ")\nafter")
    assert rest("f(a)", "\nafter", made=made, text="a)  # all", replaces=1) == ("  # all", 0)
    assert rest("f(a", ")\nafter", made=made, text="a)  # all", replaces=1) == (")  # all", 1)


def test_u14_after_auto_indent_the_rest_stays():
    assert rest("def f():\n    ", "\nafter", made=("def f():", "\nafter"), text="\n    return 1") == ("return 1", 0)


@pytest.mark.parametrize("suffix", ["\nafter_all", "\naft", "", "\n\nafter", "x\nafter"])
def test_u13_an_item_is_found_for_the_same_suffix_only(suffix):
    assert rest("x = ", suffix) is None
    assert rest("x = ", suffix, made=("x = ", "")) == (("compute(a, b)", 0) if suffix == "" else None)


def test_a_suffix_that_had_to_be_cut_may_be_cut_elsewhere():
    long = "\n" + "after " * CUT_FROM
    assert rest("x = compute(", ")" + long[:-9], made=("x = ", long)) == ("a, b", 0)


def test_u13_an_item_is_found_for_the_same_context_document_and_limits_only():
    memory = ItemMemory()
    memory.put(key(), "x = ", "", Item("1"))
    for other in (key(other="import b"), key(uri="file:///c.py"), key(tokens=32)):
        assert memory.get(other, "x = ", "") is None
    assert memory.get(key(), "x = ", "") == (Item("1"), False)


def test_the_memory_is_bounded_and_the_newest_item_counts():
    memory = ItemMemory()
    for number in range(CAPACITY + 1):
        memory.put(key(), f"{number} = ", "", Item("old"))
    assert memory.get(key(), "0 = ", "") is None
    memory.put(key(), "9 = ", "", Item("new"))
    assert memory.get(key(), "9 = ", "") == (Item("new"), False)
    assert memory.all(key(), "9 = ", "") == [Item("new"), Item("old")]
