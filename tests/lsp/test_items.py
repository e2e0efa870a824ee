"""The memory of items: found again only for the very text and context they were made from."""

from lsp.items import CAPACITY, ItemMemory, item_key
from prompts.segments import Segment


def key(suffix="after", other="import a", uri="file:///a.py", tokens=64):
    segments = (
        Segment("file", other, "open file", "b.py"),
        Segment("suffix", suffix, "current", "a.py"),
        Segment("prefix", "ignored", "current"),
    )
    return item_key(uri, segments, tokens)


def test_u14_typing_along_an_item_keeps_the_rest():
    memory = ItemMemory()
    memory.put(key(), "x = ", "compute(a, b)")
    assert memory.get(key(), "x = ") == "compute(a, b)"
    assert memory.get(key(), "x = comp") == "ute(a, b)"
    assert memory.get(key(), "x = compute(a, b)") is None
    assert memory.get(key(), "x = con") is None
    assert memory.get(key(), "x =") is None


def test_u13_an_item_is_found_for_the_same_suffix_context_document_and_limits_only():
    memory = ItemMemory()
    memory.put(key(), "x = ", "1")
    for other in (key(suffix="b"), key(other="import b"), key(uri="file:///c.py"), key(tokens=32)):
        assert memory.get(other, "x = ") is None
    assert memory.get(key(), "y = ") is None


def test_the_memory_is_bounded_and_the_newest_item_counts():
    memory = ItemMemory()
    for number in range(CAPACITY + 1):
        memory.put(key(), f"{number} = ", "old")
    assert memory.get(key(), "0 = ") is None
    memory.put(key(), "9 = ", "new")
    assert memory.get(key(), "9 = ") == "new"
