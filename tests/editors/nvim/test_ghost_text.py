"""Ghost text in a real Neovim: what a user sees and what the keys do, with the native client and with our own."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, script
from neovim import Neovim

BODY = "(a, b):\n    return a + b"


def show(editor: Neovim, engine: FakeEngine, name: str, text: str, *, typed: str = "def ad", key: str = "d") -> None:
    """Type until the item ``text`` is on the screen. Nothing is offered before the last key."""
    engine.answer = lambda request: script(text if "".join(engine.texts("prefix")).endswith(typed + key) else "")
    editor.open(name, "import os\n\n\n")
    editor.keys("S")
    editor.type(typed)
    editor.type(key)
    editor.wait_ghost(text)


def test_text_that_is_typed_brings_ghost_text_of_several_lines_and_tab_accepts_it(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    show(editor, engine, name, BODY)
    assert editor.lines[-1] == "def add"
    editor.wait_for(lambda: editor.logged("item shown"))
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-2:] == ["def add(a, b):", "    return a + b"])
    assert editor.ghost() == ""
    assert tuple(editor.api.current.window.cursor) == (len(editor.lines), len("    return a + b"))
    editor.wait_for(lambda: editor.logged("item accepted"))
    assert len(editor.logged("item shown")) == 1


def test_an_accepted_item_is_one_step_to_undo(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show(editor, engine, name, BODY)
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "    return a + b")
    editor.keys("<Esc>", "u")
    assert editor.lines[-1] == "def add"


def test_u14_typing_along_keeps_the_rest_without_asking_the_engine(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    show(editor, engine, name, BODY)
    asked = len(engine.requests)
    for typed, rest in (("(", "a, b):\n    return a + b"), ("a", ", b):\n    return a + b")):
        editor.type(typed)
        editor.wait_ghost(rest)
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-2:] == ["def add(a, b):", "    return a + b"])
    assert len(engine.requests) == asked


def test_u16_words_are_accepted_one_by_one(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show(editor, engine, name, BODY)
    asked = len(engine.requests)
    for line, rest in (("def add(", "a, b):\n    return a + b"), ("def add(a", ", b):\n    return a + b")):
        editor.keys("<M-Right>")
        editor.wait_for(lambda line=line: editor.lines[-1] == line)
        editor.wait_ghost(rest)
    editor.wait_for(lambda: len(editor.logged("item accepted in part")) == 2)
    assert [line.rpartition("=")[2] for line in editor.logged("item accepted in part")] == ["1", "2"]
    assert len(engine.requests) == asked


def test_words_that_are_asked_for_at_once_all_come(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show(editor, engine, name, BODY)
    editor.api.input("<M-Right><M-Right><M-Right>")
    editor.wait_for(lambda: editor.lines[-1] == "def add(a,")


def test_lines_are_accepted_one_by_one_and_the_last_one_is_the_whole_item(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    show(editor, engine, name, BODY)
    editor.keys("<M-Down>")
    editor.wait_for(lambda: editor.lines[-1] == "def add(a, b):")
    editor.wait_ghost("\n    return a + b")
    editor.keys("<M-Down>")
    editor.wait_for(lambda: editor.lines[-2:] == ["def add(a, b):", "    return a + b"])
    assert editor.ghost() == ""
    editor.wait_for(lambda: [line for line in editor.logged("item accepted") if "part" not in line])


def test_what_does_not_fit_any_more_is_gone(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show(editor, engine, name, BODY)
    editor.type("x")
    editor.wait_ghost("")
    editor.keys("<Tab>")
    assert editor.lines[-1].startswith("def addx")
    assert "return" not in editor.lines[-1]


def test_u12_what_is_dismissed_is_not_offered_again_until_something_is_typed(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    show(editor, engine, name, BODY)
    editor.keys("<C-]>")
    editor.wait_ghost("")
    editor.wait_for(lambda: editor.logged("item dismissed"))
    assert editor.lines[-1] == "def add"
    editor.keys("<Left>")
    editor.wait_for(lambda: editor.logged("reason=mid_word"))
    editor.keys("<Right>")
    editor.wait_for(lambda: editor.logged("reason=dismissed"))
    assert editor.ghost() == ""
    editor.type("(")
    editor.wait_for(lambda: len(editor.logged("completion reason")) > len(editor.logged("reason=dismissed")))


def test_leaving_insert_mode_takes_the_ghost_text_away(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show(editor, engine, name, BODY)
    editor.keys("<Esc>")
    editor.wait_ghost("")
    assert editor.lines[-1] == "def add"


def test_a_key_asks_for_alternatives_and_goes_round_them(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show(editor, engine, name, "first")
    texts = iter(["first", "second", "third"] * 4)
    engine.answer = lambda request: script(next(texts))
    before = len(editor.logged("completion reason"))
    editor.keys("<M-n>")
    editor.wait_for(lambda: len(editor.logged("completion reason")) > before)
    seen = set()
    for number in (2, 3, 1):
        editor.keys("<M-n>")
        editor.wait_for(lambda number=number: editor.ghost().endswith(f" ({number}/3)"))
        seen.add(editor.ghost().partition(" (")[0])
    assert seen == {"first", "second", "third"}
    editor.keys("<M-p>")
    editor.wait_for(lambda: editor.ghost().endswith(" (3/3)"))
    last = editor.ghost().partition(" (")[0]
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "def add" + last)


@pytest.mark.parametrize("closer", [")", '")'])
def test_closers_that_stand_after_the_cursor_are_not_doubled(
    editor: Neovim, engine: FakeEngine, name: str, closer: str
) -> None:
    begin = "print(" + closer[:-1]
    engine.answer = lambda request: script("total" + closer)
    editor.open(name, f"total = 1\n{begin}{closer}\n")
    editor.lua("vim.api.nvim_win_set_cursor(0, {2, ...})", len(begin))
    editor.keys("i")
    editor.wait_for(editor.ghost)
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[1] == f"{begin}total{closer}")


def test_text_outside_ascii_before_the_cursor_moves_nothing(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script("größer + '😀'")
    editor.open(name, "x = 1\n")
    editor.keys("o")
    editor.type("s = 'ä😀' + ")
    editor.wait_ghost("größer + '😀'")
    editor.keys("<M-Right>", "<M-Right>")
    editor.wait_for(lambda: editor.lines[-1] == "s = 'ä😀' + größer +")
    editor.wait_ghost(" '😀'")
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "s = 'ä😀' + größer + '😀'")


def test_u26_a_document_with_crlf_stays_one(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script(BODY)
    editor.open(name, "x = 1\r\n")
    assert editor.api.current.buffer.options["fileformat"] == "dos"
    editor.keys("o")
    editor.type("def add")
    editor.wait_ghost(BODY)
    editor.keys("<M-Down>")
    editor.wait_for(lambda: editor.lines[-1] == "def add(a, b):")
    editor.wait_ghost("\n    return a + b")
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-2:] == ["def add(a, b):", "    return a + b"])


def test_u48_a_document_that_is_read_only_is_not_asked_about(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.open(name, "x = 1\n")
    editor.api.command("setlocal readonly")
    editor.keys("o")
    editor.type("y = ")
    editor.api.command("sleep 400m")
    assert engine.requests == []


def test_what_follows_in_the_line_is_drawn_behind_the_last_line_of_the_item(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    if editor.version == "0.12.4":
        pytest.skip("Neovim draws this by itself")
    engine.answer = lambda request: script("[\n    1,\n]")
    editor.open(name, "x = 1\ny =  # all\n")
    editor.lua("vim.api.nvim_win_set_cursor(0, {2, 4})")
    editor.keys("i")
    editor.wait_for(editor.ghost)
    editor.api.command("redraw!")
    rows = ["".join(editor.api.funcs.screenstring(row, column) for column in range(1, 20)) for row in range(1, 6)]
    assert [row.rstrip() for row in rows] == ["x = 1", "y = [", "    1,", "] # all", "~"]
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines == ["x = 1", "y = [", "    1,", "] # all"])


def test_u01_a_bracket_that_the_editor_closed_while_typing_along_is_not_doubled(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    editor.api.command("inoremap ( ()<Left>")
    try:
        show(editor, engine, name, "(total)", typed="prin", key="t")
        asked = len(engine.requests)
        editor.keys("(")
        editor.wait_for(lambda: editor.lines[-1] == "print()")
        editor.wait_for(lambda: "total" in editor.ghost() and "(" not in editor.ghost())
        editor.keys("<Tab>")
        editor.wait_for(lambda: editor.lines[-1] == "print(total)")
        assert len(engine.requests) == asked
    finally:
        editor.api.command("iunmap (")
