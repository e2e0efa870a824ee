"""Commands, the statusline, `:checkhealth`, the help, and what is said of a wrong option."""

from __future__ import annotations

import shutil
from pathlib import Path

import pynvim
import pytest
from fake_engine import FakeEngine, script
from neovim import PLUGIN, Neovim


def has_keys(editor: Neovim) -> bool:
    return "Draftline" in editor.api.eval("maparg('<Tab>', 'i', 0, 1)").get("desc", "")


def test_disabled_means_no_ghost_text_and_no_keys_until_enabled(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.open(name, "x = 1\n")
    editor.api.command("Draftline disable")
    assert editor.status() == "Draftline: off"
    editor.wait_for(lambda: editor.lua("return #vim.lsp.get_clients()") == 0)
    assert not has_keys(editor)
    assert editor.told() == []
    editor.api.command("Draftline enable")
    editor.wait_for(lambda: editor.status().startswith("Draftline: ready"))
    editor.keys("o")
    editor.type("y = ")
    editor.wait_ghost("value")


def test_restart_starts_another_server_and_the_open_documents_go_on(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    editor.open(name, "x = 1\n")
    before = editor.lua("return vim.lsp.get_clients()[1].id")
    editor.api.command("Draftline restart")
    editor.wait_for(
        lambda: editor.lua("return vim.tbl_map(function(c) return c.id end, vim.lsp.get_clients())") != [before]
    )
    editor.wait_for(lambda: editor.lua("return #vim.lsp.get_clients()") == 1)
    editor.wait_for(lambda: editor.status().startswith("Draftline: ready"))
    editor.keys("o")
    editor.type("y = ")
    editor.wait_ghost("value")
    editor.keys("<Tab>")
    editor.wait_for(lambda: editor.lines[-1] == "y = value")
    assert editor.told() == []


def test_the_status_has_the_state_and_the_speed_and_the_command_the_figures(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    editor.open(name, "x = 1\n")
    editor.keys("o")
    editor.type("y = ")
    editor.wait_ghost("value")
    assert editor.status() == "Draftline: ready, 123 tokens/s"
    editor.keys("<Esc>")
    lines = editor.api.command_output("Draftline status").splitlines()
    assert lines[:3] == ["Draftline: ready, 123 tokens/s", "engine: ready (fake)", "last request: shown"]
    assert lines[3] == "tokens: 40 prefilled, 60 reused, 12 drafted, 7 accepted"


def test_a_word_that_is_no_command_is_told_with_those_that_are(editor: Neovim) -> None:
    editor.api.command("Draftline dance")
    names = "disable, docstring, edit, enable, explain, fix, next, prompt, restart, status, tests"
    assert editor.told() == [f"Draftline: there is no `:Draftline dance`, only {names}"]
    editor.lua("_G.told = {}")
    editor.api.command("Draftline restart now")
    assert editor.told() == [f"Draftline: there is no `:Draftline restart now`, only {names}"]
    assert editor.api.funcs.getcompletion("Draftline re", "cmdline") == ["restart"]


def test_checkhealth_says_what_runs(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.open(name, "x = 1\n")
    editor.keys("<Esc>")
    editor.api.command("checkhealth draftline")
    text = "\n".join(editor.lines)
    assert f"Neovim {editor.version}, ghost text: " in text
    assert ("Neovim's own" in text) == (editor.version == "0.12.4")
    assert "the language server is `" in text
    assert "the engine is ready (fake)" in text
    assert "accept: <Tab>" in text
    assert "ERROR" not in text
    assert "WARNING" not in text


def test_checkhealth_names_a_program_that_is_missing(editor: Neovim) -> None:
    editor.lua("require('draftline.config').current.cmd = {'no-such-draftline'}")
    try:
        editor.api.command("checkhealth draftline")
        text = "\n".join(editor.lines)
        assert "ERROR" in text
        assert "`no-such-draftline` is not a program that can be run" in text
    finally:
        editor.set_up("settings = {debounce_ms = 0, alternatives = 3, prefetch = false}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("{filetype = {'c'}}", "there is no option filetype"),
        ("{keys = {take = '<Tab>'}}", "there is no option keys.take"),
        ("{keys = {accept = 1}}", "option keys.accept must be a key, or false"),
        ("{cmd = 'draftline lsp'}", "option cmd must be a list of texts"),
        ("{settings = 1}", "option settings must be a table"),
        ("{native = 'yes'}", "option native must be true or false"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(editor: Neovim, options: str, told: str) -> None:
    with pytest.raises(pynvim.NvimError) as error:
        editor.lua(f"require('draftline.config').read({options})")
    assert f"draftline: {told}" in str(error.value)


def test_native_before_012_is_an_error_that_says_so(editor: Neovim) -> None:
    ok, told = editor.lua("return {pcall(require('draftline.config').read, {native = true, cmd = {'x'}})}")
    if editor.version != "0.12.4":
        assert (ok, told) == (False, "draftline: option native must be false before Neovim 0.12")
    else:
        assert ok
        editor.set_up("settings = {debounce_ms = 0, alternatives = 3, prefetch = false}")


def test_a_setting_that_the_server_can_not_use_is_told(editor: Neovim, engine: FakeEngine, name: str) -> None:
    editor.set_up("settings = {max_tokens = 'many'}")
    try:
        editor.open(name, "x = 1\n")
        editor.wait_for(editor.told)
        (line,) = editor.told()
        assert line.startswith("Draftline: ")
        assert "max_tokens" in line
    finally:
        editor.keys("<Esc>")
        editor.set_up("settings = {debounce_ms = 0, alternatives = 3, prefetch = false}")


def test_a_server_that_ends_by_itself_is_told_once_and_restart_brings_it_back(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    editor.open(name, "x = 1\n")
    editor.lua(
        "for _, pid in ipairs(vim.api.nvim_get_proc_children(vim.fn.getpid())) do vim.uv.kill(pid, 'sigkill') end"
    )
    editor.wait_for(lambda: [line for line in editor.told() if "Draftline restart" in line])
    assert len([line for line in editor.told() if "Draftline" in line]) == 1
    assert not has_keys(editor)
    editor.api.command("Draftline restart")
    editor.wait_for(lambda: editor.status().startswith("Draftline: ready"))


def test_the_help_has_a_tag_for_every_command_option_and_function(editor: Neovim, tmp_path: Path) -> None:
    shutil.copy(PLUGIN / "doc" / "draftline.txt", tmp_path)
    editor.api.command(f"helptags {tmp_path}")
    tags = {line.split("\t")[0] for line in (tmp_path / "tags").read_text(encoding="utf-8").splitlines()}
    options = editor.lua("return vim.tbl_keys(require('draftline.config').defaults)")
    keys = editor.lua("return vim.tbl_keys(require('draftline.config').defaults.keys)")
    commands = editor.api.funcs.getcompletion("Draftline ", "cmdline")
    assert {f"draftline-{option}" for option in options} <= tags
    assert {f"draftline.{key}()" for key in keys} <= tags
    assert {f":Draftline-{command}" for command in commands} <= tags


def test_the_help_is_found_without_a_plugin_manager(editor: Neovim) -> None:
    editor.api.command("help draftline-setup")
    assert Path(editor.api.current.buffer.name) == PLUGIN / "doc" / "draftline.txt"
    assert "*draftline-setup*" in editor.api.current.line


def test_the_help_names_every_default(editor: Neovim) -> None:
    text = (PLUGIN / "doc" / "draftline.txt").read_text(encoding="utf-8")
    keys = editor.lua("return require('draftline.config').defaults.keys")
    assert all(key in text for key in keys.values())


def test_a_document_of_another_kind_has_no_server(editor: Neovim, engine: FakeEngine) -> None:
    editor.api.command(f"edit {editor.folder / 'notes.txt'}")
    engine.answer = lambda request: script("value")
    assert editor.lua("return #vim.lsp.get_clients({bufnr = 0})") == 0


def test_the_own_ghost_text_can_be_chosen_and_left_where_there_is_a_native_one(
    editor: Neovim, engine: FakeEngine, name: str
) -> None:
    editor.set_up("native = false, settings = {debounce_ms = 0}")
    try:
        editor.open(name, "x = 1\n")
        editor.keys("o")
        editor.type("y = ")
        editor.wait_ghost("value")
        spaces = editor.api.api.get_namespaces()
        assert editor.api.api.buf_get_extmarks(0, spaces["draftline"], 0, -1, {})
        editor.keys("<Tab>")
        editor.wait_for(lambda: editor.lines[-1] == "y = value")
    finally:
        editor.keys("<Esc>")
        editor.set_up("settings = {debounce_ms = 0, alternatives = 3, prefetch = false}")
