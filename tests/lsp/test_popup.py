"""``textDocument/completion``: the same item for editors without ghost text."""

import pytest
from fake_engine import script

from lsp.popup import label_of


def test_u46_the_popup_offers_what_ghost_text_would(editor, engine, uri):
    engine.answer = lambda request: script("ute(a, b)")
    editor.open(uri, "é = comp")
    (entry,) = editor.popup(uri, 0, 8)
    assert entry["label"] == "compute(a, b)"
    assert entry["textEdit"] == {
        "range": {"start": {"line": 0, "character": 4}, "end": {"line": 0, "character": 8}},
        "newText": "compute(a, b)",
    }
    assert entry["filterText"] == "comp"
    assert entry["data"]["version"] == 1
    assert entry["data"]["prefilled"] == 40


def test_ghost_text_and_popup_for_one_keystroke_ask_the_engine_once(editor, engine, uri):
    engine.answer = lambda request: script("value", pause=0.2)
    editor.open(uri, "x = ")
    inline = editor.start_inline(uri, 0, 4)
    (entry,) = editor.popup(uri, 0, 4)
    (item,) = editor.result(inline)["items"]
    assert (entry["label"], item["insertText"]) == ("value", "value")
    assert len(engine.requests) == 1


def test_an_item_of_many_lines_is_shown_whole_beside_its_one_line_label(editor, engine, uri):
    engine.answer = lambda request: script("\n    return a\n")
    editor.open(uri, "def f(a):\r\n")
    (entry,) = editor.popup(uri, 0, 9)
    assert entry["label"] == "return a"
    assert entry["textEdit"]["newText"] == "\r\n    return a"
    assert entry["documentation"] == "\r\n    return a"


def test_the_popup_can_be_switched_off(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"draftline": {"popup": False}}})
    editor.open(uri, "x = ")
    assert editor.popup(uri, 0, 4) == []
    assert len(editor.inline(uri, 0, 4)) == 1
    editor.notify("workspace/didChangeConfiguration", {"settings": {"draftline": {"popup": True}}})


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
