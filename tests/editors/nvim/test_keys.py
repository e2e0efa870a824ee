"""What the keys did before the plug-in they still do where there is no ghost text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine, script
from neovim import Neovim


def quiet(editor: Neovim, engine: FakeEngine, name: str) -> None:
    """Insert mode in an empty last line, where the model has nothing to say."""
    engine.answer = lambda request: script("")
    editor.open(name, "x = 1\n")
    editor.keys("o")


@pytest.fixture
def own_tab(editor: Neovim) -> Iterator[None]:
    """Neovim has a global mapping of Tab by itself, which comes back."""
    editor.lua("_G.tab = vim.fn.maparg('<Tab>', 'i', false, true)")
    yield
    editor.lua("vim.keymap.del('i', '<Tab>')")
    editor.lua("if next(_G.tab) then vim.fn.mapset('i', false, _G.tab) end")


def test_tab_is_a_tab_where_nothing_is_shown(editor: Neovim, engine: FakeEngine, name: str) -> None:
    quiet(editor, engine, name)
    editor.type("y")
    editor.keys("<Tab>", "z")
    editor.wait_for(lambda: editor.lines[-1] == "y\tz")


@pytest.mark.usefixtures("own_tab")
def test_a_global_mapping_of_tab_that_came_after_is_done(editor: Neovim, engine: FakeEngine, name: str) -> None:
    quiet(editor, engine, name)
    for rhs, inserted in (("'one'", "one"), ("function() vim.api.nvim_put({'two'}, 'c', false, true) end", "two")):
        editor.lua(f"vim.keymap.set('i', '<Tab>', {rhs})")
        editor.keys("<Esc>", "S", "<Tab>")
        editor.wait_for(lambda inserted=inserted: editor.lines[-1] == inserted)
    editor.lua("vim.keymap.set('i', '<Tab>', function() return 'a<Left>b' end, {expr = true})")
    editor.keys("<Esc>", "S", "<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "ba")
    editor.api.command('inoremap <expr> <Tab> pumvisible() ? "\\<C-n>" : "c\\<Left>d"')
    editor.keys("<Esc>", "S", "<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "dc")


@pytest.mark.usefixtures("own_tab")
def test_a_mapping_to_another_mapping_is_followed_and_one_to_itself_ends(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    quiet(editor, engine, name)
    editor.api.command("inoremap <Plug>(one) one")
    editor.api.command("imap <Tab> <Plug>(one)")
    editor.keys("<Esc>", "S", "<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "one")
    editor.api.command("imap <Tab> <Tab>x")
    editor.keys("<Esc>", "S", "<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "\tx")


def test_a_mapping_of_the_buffer_is_done_and_comes_back_when_draftline_is_disabled(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    engine.answer = lambda request: script("")
    editor.api.command("autocmd FileType python ++once inoremap <buffer> <Tab> mine")
    # Before ours, as an ftplugin does it.
    editor.lua("require('draftline').disable()")
    editor.lua("require('draftline').enable()")
    editor.open(name, "x = 1\n")
    editor.keys("o", "<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "mine")
    assert "Draftline" in editor.api.eval("maparg('<Tab>', 'i', 0, 1)")["desc"]
    editor.keys("<Esc>")
    editor.api.command("Draftline disable")
    mapping = editor.api.eval("maparg('<Tab>', 'i', 0, 1)")
    assert (mapping["rhs"], mapping["buffer"]) == ("mine", 1)
    editor.api.command("Draftline enable")


def test_a_jump_in_a_snippet_has_tab_for_itself(editor: Neovim, engine: FakeEngine, name: str) -> None:
    engine.answer = lambda request: script("value")
    editor.open(name, "x = 1\n")
    editor.keys("o")
    editor.lua("vim.snippet.expand('f(${1:a}, ${2:b})')")
    editor.keys("q", "<Tab>", "r")
    editor.wait_for(lambda: editor.lines[-1] == "f(q, r)")
    assert engine.requests == []
    editor.lua("vim.snippet.stop()")


def test_keys_can_be_others_and_none(editor: Neovim, engine: FakeEngine, name: str) -> None:
    options = "settings = {debounce_ms = 0}, keys = {accept = '<C-l>', accept_word = false}"
    editor.set_up(options)
    try:
        engine.answer = lambda request: script("value")
        editor.open(name, "x = 1\n")
        editor.keys("o")
        editor.type("y = ")
        editor.wait_ghost("value")
        assert editor.api.eval("maparg('<M-Right>', 'i')") == ""
        editor.keys("<C-l>")
        editor.wait_for(lambda: editor.lines[-1] == "y = value")
    finally:
        editor.keys("<Esc>")
        editor.set_up("settings = {debounce_ms = 0, alternatives = 3, prefetch = false}")
