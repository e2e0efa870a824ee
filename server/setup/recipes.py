"""For each editor: where its configuration is, what belongs into it, and what the user does then.

``docs/editors.md`` has the same by hand.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from server.setup.blocks import CantEdit, with_block
from server.setup.json_files import with_entries


@dataclass(frozen=True)
class Recipe:
    """path: the file, which may not exist. edit: its text -> the new one, raises CantEdit. wanted: what the user would
    add by hand. then: what is left to do."""

    title: str
    path: Path
    edit: Callable[[str], str]
    wanted: str
    then: str


def program() -> str:
    """``draftline`` of this installation: an editor may see another PATH than the shell."""
    beside = Path(sys.executable).with_name("draftline")
    return str(beside) if beside.exists() else "draftline"


def neovim_plugin() -> Path:
    """In a wheel it is beside this file, in a checkout where it is developed."""
    packed = Path(__file__).parent / "nvim"
    return packed if packed.exists() else Path(__file__).parents[2] / "editors" / "nvim"


def _config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _applications(linux: str, mac: str) -> Path:
    """The configuration folder of a program with a window."""
    return Path.home() / "Library" / "Application Support" / mac if sys.platform == "darwin" else _config() / linux


def _text(value: str) -> str:
    """A string literal, the same in Lua, Emacs Lisp and TOML."""
    return json.dumps(value, ensure_ascii=False)


def neovim() -> Recipe:
    folder = _config() / (os.environ.get("NVIM_APPNAME") or "nvim")
    lines = [
        f"vim.opt.runtimepath:prepend({_text(str(neovim_plugin()))})",
        f"require('draftline').setup {{ cmd = {{ {_text(program())}, 'lsp' }} }}",
    ]
    path, comment = folder / "init.lua", "--"
    if not path.exists() and (folder / "init.vim").exists():  # both are an error
        path, comment = folder / "init.vim", '"'
        lines = [f"lua {line}" for line in lines]

    def edit(text: str) -> str:
        if comment == "--" and re.search(r"^return\b", text, re.MULTILINE):
            raise CantEdit("returns something, and nothing may stand behind that")
        return with_block(text, lines, comment)

    then = "start Neovim anew; `:checkhealth draftline` says whether all is well"
    return Recipe("Neovim", path, edit, "\n".join(lines), then)


def helix() -> Recipe:
    lines = [
        "[language-server.draftline]",
        f"command = {_text(program())}",
        'args = ["lsp"]',
        "",
        "[[language]]",
        'name = "python"',
        'language-servers = ["ruff", "jedi", "pylsp", "draftline"]',
    ]

    def edit(text: str) -> str:
        new = with_block(text, lines, "#")
        try:
            languages = tomllib.loads(new).get("language", [])
        except tomllib.TOMLDecodeError:
            raise CantEdit("isn't valid TOML, or wouldn't be with our lines") from None
        if [language.get("name") for language in languages].count("python") > 1:
            raise CantEdit("has a language python already, whose language-servers our name belongs into")
        return new

    then = "`hx --health python` says whether it is found; completions come in the popup"
    return Recipe("Helix", _config() / "helix" / "languages.toml", edit, "\n".join(lines), then)


def emacs() -> Recipe:
    home = Path.home()
    known = [home / ".emacs.el", home / ".emacs", home / ".emacs.d" / "init.el", _config() / "emacs" / "init.el"]
    path = next((path for path in known if path.exists()), known[2])
    lines = [
        "(with-eval-after-load 'eglot",
        "  (add-to-list 'eglot-server-programs",
        f'               \'((python-mode python-ts-mode) . ({_text(program())} "lsp"))))',
    ]
    then = "start Emacs anew; `M-x eglot` in a Python buffer"
    return Recipe("Emacs (eglot)", path, lambda text: with_block(text, lines, ";;"), "\n".join(lines), then)


def _json(title: str, path: Path, entries: dict[str, object], then: str) -> Recipe:
    return Recipe(title, path, lambda text: with_entries(text, entries), json.dumps(entries, indent=2), then)


def sublime() -> Recipe:
    client = {"enabled": True, "command": [program(), "lsp"], "selector": "source.python"}
    folder = _applications("sublime-text", "Sublime Text") / "Packages" / "User"
    then = "install the package LSP if it isn't there; `LSP: Toggle Log Panel` shows what it does"
    return _json("Sublime Text", folder / "LSP.sublime-settings", {"clients": {"draftline": client}}, then)


def zed() -> Recipe:
    entries: dict[str, object] = {
        "lsp": {"pylsp": {"binary": {"path": program(), "arguments": ["lsp"]}}},
        "languages": {"Python": {"language_servers": ["pylsp", "..."]}},
    }
    then = "Draftline runs under the name pylsp, because Zed starts only servers that it knows"
    return _json("Zed", _config() / "zed" / "settings.json", entries, then)


def vscode() -> Recipe:
    folder = _applications("Code", "Code") / "User"
    entries: dict[str, object] = {"editor.inlineSuggest.enabled": True, "draftline.command": [program(), "lsp"]}
    then = "the extension itself isn't part of this: `code --install-extension` takes its .vsix file"
    return _json("VS Code", folder / "settings.json", entries, then)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "vscode": vscode,
    "nvim": neovim,
    "helix": helix,
    "zed": zed,
    "emacs": emacs,
    "sublime": sublime,
}
