"""Edits in a real Neovim: the diff as it is written, what keys take and leave, and that a newer text stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from edits import fenced
from fake_engine import FakeEngine, Script, script
from neovim import Neovim

TEXT = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
NEW = ("a = 1", "b = 20", "c = 3", "d = 4", "e = 50", "f = 6")


@pytest.fixture(scope="module")
def running(version: str, folder: Path) -> Iterator[tuple[Neovim, FakeEngine]]:
    engine = FakeEngine(folder / "run", chat=True)
    editor = Neovim(version, folder / "work", {"DRAFTLINE_RUNTIME_DIR": str(folder / "run")})
    editor.set_up("settings = {debounce_ms = 0, prefetch = false}")
    yield editor, engine
    editor.close()
    engine.close()


def marks(editor: Neovim) -> tuple[list[int], list[str]]:
    """Rows (from 1) that are marked as old, and the new lines that are drawn."""
    space = editor.api.api.get_namespaces().get("draftline.diff")
    found = editor.api.api.buf_get_extmarks(0, space, 0, -1, {"details": True}) if space else []
    old = [row + 1 for _, row, _, details in found if details.get("line_hl_group")]
    new = ["".join(c[0] for c in line) for *_, details in found for line in details.get("virt_lines", [])]
    return old, new


def hint(editor: Neovim) -> list[str]:
    """What is drawn behind lines about the next edit."""
    space = editor.api.api.get_namespaces()["draftline.hint"]
    found = editor.api.api.buf_get_extmarks(0, space, 0, -1, {"details": True})
    return [details["virt_text"][0][0] for *_, details in found]


def wait_marks(editor: Neovim, old: list[int], new: list[str]) -> None:
    editor.wait_for(lambda: marks(editor) == (old, new), lambda: f"shown: {marks(editor)}")


def keys_of_edits(editor: Neovim) -> list[str]:
    mappings = editor.api.api.buf_get_keymap(0, "n")
    return sorted(m["lhs"] for m in mappings if "Draftline" in m.get("desc", "") and "next" not in m["desc"])


def show_edit(editor: Neovim, engine: FakeEngine, name: str, text: str = TEXT) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    editor.open(name, text)
    editor.api.command("%Draftline edit change the numbers")
    wait_marks(editor, [2, 5], ["b = 20", "e = 50", "f = 6"])


def test_an_edit_is_shown_and_taken_as_one_step_of_undo(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show_edit(editor, engine, name)
    assert editor.lines == TEXT.split("\n")[:-1]
    assert engine.requests[0]["segments"][-1]["text"].endswith("change the numbers\n")
    assert len(keys_of_edits(editor)) == 4
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines == list(NEW))
    assert marks(editor) == ([], [])
    assert keys_of_edits(editor) == []
    editor.keys("u")
    assert editor.lines == TEXT.split("\n")[:-1]
    assert editor.told() == []


def test_hunks_are_taken_and_left_one_by_one(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show_edit(editor, engine, name)
    editor.keys("gg", "<M-r>")
    wait_marks(editor, [5], ["e = 50", "f = 6"])
    editor.keys("<M-a>")
    editor.wait_for(lambda: editor.lines == ["a = 1", "b = 2", "c = 3", "d = 4", "e = 50", "f = 6"])
    assert keys_of_edits(editor) == []


def test_a_hunk_that_is_taken_moves_those_below(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script(fenced("a = 1", "x = 0", "b = 2", "c = 3", "d = 40", "e = 5"))
    editor.open(name, TEXT)
    editor.api.command("%Draftline edit more")
    wait_marks(editor, [4], ["x = 0", "d = 40"])
    editor.keys("gg", "<M-a>")
    wait_marks(editor, [5], ["d = 40"])
    editor.keys("<M-a>")
    editor.wait_for(lambda: editor.lines == ["a = 1", "x = 0", "b = 2", "c = 3", "d = 40", "e = 5"])


def test_rejecting_leaves_every_byte_and_key_as_it_was(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.open(name, TEXT)
    editor.api.command("nnoremap <buffer> <Tab> :let g:mine = 1<CR>")
    tick = editor.api.eval("b:changedtick")
    show_edit(editor, engine, name)
    tick = editor.api.eval("b:changedtick")
    editor.keys("<C-]>")
    editor.wait_for(lambda: marks(editor) == ([], []))
    assert editor.api.eval("b:changedtick") == tick
    assert keys_of_edits(editor) == []


def test_a_mapping_of_the_buffers_own_comes_back(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    editor.open(name, TEXT)
    editor.api.command("nnoremap <buffer> <Tab> <Cmd>let g:mine = 1<CR>")
    editor.api.command("%Draftline edit change the numbers")
    wait_marks(editor, [2, 5], ["b = 20", "e = 50", "f = 6"])
    editor.keys("<C-]>", "<Tab>")
    assert editor.api.eval("g:mine") == 1


def test_the_diff_is_shown_while_it_is_written_and_can_be_stopped(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    engine.answer = lambda request: Script(pieces=["```python\na = 1\nb = 20\nc = 3\n"], hang=True)
    editor.open(name, TEXT)
    editor.api.command("%Draftline edit change the numbers")
    wait_marks(editor, [2], ["b = 20"])
    editor.keys("<Tab>")
    assert editor.told() == ["Draftline: the edit is still being written"]
    editor.keys("<C-]>")
    engine.wait_until(lambda: bool(engine.cancelled))
    assert marks(editor) == ([], [])
    assert editor.lines == TEXT.split("\n")[:-1]


def test_a_text_that_has_changed_is_never_overwritten(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show_edit(editor, engine, name)
    editor.lua("vim.api.nvim_buf_set_lines(0, 0, 1, false, {'mine'})")
    editor.keys("<Tab>")
    editor.wait_for(lambda: marks(editor) == ([], []))
    assert editor.lines == ["mine", *TEXT.split("\n")[1:-1]]
    assert editor.told() == ["Draftline: the text has changed: the edit is withdrawn, and nothing of it was applied"]


def test_what_is_refused_is_told_in_one_line(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script("No.", reason="end")
    editor.open(name, TEXT)
    editor.api.command("2Draftline edit do it")
    editor.wait_for(lambda: bool(editor.told()))
    (line,) = editor.told()
    assert line.startswith("Draftline: the answer holds no code between fences")
    assert keys_of_edits(editor) == []


def test_an_instruction_is_asked_for_where_none_is_given(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script(fenced("b = 3"))
    editor.open(name, TEXT)
    editor.lua("vim.ui.input = function(options, done) done('asked ' .. options.prompt) end")
    editor.api.command("2Draftline edit")
    wait_marks(editor, [2], ["b = 3"])
    assert engine.requests[0]["segments"][-1]["text"].endswith("asked Edit:\n")
    editor.keys("<C-]>")


def test_a_file_with_crlf_keeps_it(editor: Neovim, engine: FakeEngine, name: str) -> None:
    show_edit(editor, engine, name, TEXT.replace("\n", "\r\n"))
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines == list(NEW))
    editor.api.command("write")
    path = editor.folder / name
    assert path.read_bytes() == "".join(f"{line}\r\n" for line in NEW).encode()


def test_diagnostics_are_the_instruction_of_a_fix(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script(fenced("b = 3"))
    editor.open(name, TEXT)
    editor.api.command("2Draftline fix")
    assert editor.told() == ["Draftline: there is no diagnostic in these lines to fix"]
    editor.lua(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('t'), 0, {{lnum = 1, col = 0, message = 'three is better'}})"
    )
    editor.api.command("2Draftline fix")
    wait_marks(editor, [2], ["b = 3"])
    assert "Fix this: three is better" in engine.requests[0]["segments"][-1]["text"]
    editor.keys("<C-]>")


def test_code_actions_come_through_the_diff(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script(fenced("b = 3"))
    editor.open(name, TEXT)
    editor.lua("vim.ui.select = function(items, options, done) done(items[1]) end")
    editor.lua("vim.api.nvim_win_set_cursor(0, {2, 0}); vim.lsp.buf.code_action()")
    wait_marks(editor, [2], ["b = 3"])
    assert "documentation" in engine.requests[0]["segments"][-1]["text"]
    editor.keys("<C-]>")


def test_an_explanation_has_a_window_of_its_own(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: Script(pieces=["It *sets*\n", "a number."])
    editor.open(name, TEXT)
    editor.api.command("2Draftline explain")
    editor.wait_for(lambda: editor.lines == ["It *sets*", "a number."])
    assert editor.api.eval("[&buftype, &filetype]") == ["nofile", "markdown"]


def test_the_exact_prompt_is_shown(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.open(name, TEXT)
    editor.api.command("Draftline prompt")
    editor.wait_for(lambda: bool(editor.lines) and editor.lines[0].startswith("====="))
    assert f"===== suffix: current, {name}" in editor.lines or f"===== prefix: current, {name}" in editor.lines
    assert "a = 1" in editor.lines
    assert engine.requests == []


def test_the_next_edit_repeats_the_last_one_elsewhere(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.open(name, "def area(w):\n    return w\n\n\nprint(area(1))\nprint(area(2))\n")
    editor.api.command("Draftline next")
    editor.wait_for(lambda: bool(editor.told()))
    assert editor.told() == ["Draftline: the last changes repeat nowhere in the document"]
    editor.lua("vim.api.nvim_win_set_cursor(0, {1, 4})")
    editor.keys("cw")
    editor.type("surface")
    editor.keys("<Esc>")
    editor.wait_for(lambda: hint(editor) == ["  area became surface: 2 more, <M-e>"], lambda: str(hint(editor)))
    editor.keys("<M-e>")
    assert hint(editor) == []
    wait_marks(editor, [5, 6], ["print(surface(1))", "print(surface(2))"])
    editor.wait_for(lambda: editor.api.current.window.cursor[0] == 5)
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[4:] == ["print(surface(1))", "print(surface(2))"])
    assert engine.requests == [] or all(r["priority"] != "edit" for r in engine.requests)
