"""``textDocument/completion``: the same item for editors without ghost text."""

import pytest
from fake_engine import script
from language_server import root_of, start_server

from lsp.popup import label_of


@pytest.fixture(scope="module")
def plain(folder, running):
    """An editor without ghost text."""
    with start_server(folder) as client:
        capabilities = {"textDocument": {"synchronization": {}}}
        client.initialize(
            root=root_of(folder), settings={"debounce_ms": 0, "prefetch": False}, capabilities=capabilities
        )
        client.wait_ready()
        yield client


def test_u46_the_popup_offers_what_ghost_text_would(plain, engine, uri):
    engine.answer = lambda request: script("ute(a, b)")
    plain.open(uri, "é = comp")
    (entry,) = plain.popup(uri, 0, 8)
    assert entry["label"] == "compute(a, b)"
    assert entry["textEdit"] == {
        "range": {"start": {"line": 0, "character": 4}, "end": {"line": 0, "character": 8}},
        "newText": "compute(a, b)",
    }
    assert entry["filterText"] == "comp"
    assert entry["data"]["version"] == 1
    assert entry["data"]["prefilled"] == 40


def test_u15_where_there_is_ghost_text_the_popup_has_what_is_there_and_never_waits(editor, engine, uri):
    engine.answer = lambda request: script("value")
    editor.open(uri, "x = ")
    assert editor.popup(uri, 0, 4) == []
    assert engine.requests == []
    editor.inline(uri, 0, 4)
    assert [entry["label"] for entry in editor.popup(uri, 0, 4)] == ["value"]
    assert len(engine.requests) == 1


def test_an_item_of_many_lines_is_shown_whole_beside_its_one_line_label(plain, engine, uri):
    engine.answer = lambda request: script("\n    return a\n")
    plain.open(uri, "def f(a):\r\n")
    (entry,) = plain.popup(uri, 0, 9)
    assert entry["label"] == "return a"
    assert entry["textEdit"]["newText"] == "\r\n    return a"
    assert entry["documentation"] == "\r\n    return a"


def test_the_popup_can_be_switched_off(plain, engine, uri):
    plain.notify("workspace/didChangeConfiguration", {"settings": {"draftline": {"popup": False}}})
    plain.open(uri, "x = ")
    assert plain.popup(uri, 0, 4) == []
    assert len(plain.inline(uri, 0, 4)) == 1
    plain.notify("workspace/didChangeConfiguration", {"settings": {"draftline": {"popup": True}}})


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("a", "a"),
        ("a\n", "a"),
        ("if a:\n    b", "if a:…"),
        ("\n\n  x\t= 1", "x = 1"),
        ("y" * 80, "y" * 80),
        ("y" * 81, "y" * 79 + "…"),
        ("y" * 80 + "\nz", "y" * 79 + "…"),
    ],
)
def test_u47_a_label_is_one_line_of_at_most_80_characters(text, label):
    assert label_of(text) == label
