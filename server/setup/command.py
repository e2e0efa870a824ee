"""``draftline setup``: shows the change as a diff, asks, and writes it in one step, or leaves the file alone."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import tempfile
from pathlib import Path

from server.setup.blocks import CantEdit
from server.setup.recipes import RECIPES, Recipe


class SetupError(Exception):
    """str() is one line: which file, and what is wrong with it."""


def run(editor: str | None, yes: bool) -> int:
    """editor: a key of RECIPES, None tells how things are. yes: don't ask.

    Returns the exit status: 0 when the editor is set up, 1 when it isn't.
    """
    try:
        return _overview() if editor is None else _set_up(RECIPES[editor](), yes)
    except SetupError as error:
        print(f"draftline: {error}", file=sys.stderr)
        return 1


def _overview() -> int:
    for name, recipe_of in RECIPES.items():
        recipe = recipe_of()
        try:
            text = _read(recipe.path)
            state = "set up" if recipe.edit(text or "") == text else "not set up"
        except CantEdit as error:
            state = f"to be set up by hand: it {error}"
        print(f"{name:8} {recipe.path}: {state}")
    return 0


def _set_up(recipe: Recipe, yes: bool) -> int:
    path = recipe.path
    text = _read(path)
    try:
        new = recipe.edit(text or "")
    except CantEdit as error:
        print(f"draftline: {path} {error}; it was left alone. This belongs into it:\n", file=sys.stderr)
        print(recipe.wanted)
        return 1
    if new == text:
        print(f"{recipe.title} is set up already in {path}")
        return 0
    before = (text or "").splitlines(keepends=True)
    for line in difflib.unified_diff(before, new.splitlines(keepends=True), str(path) if text else "(none)", str(path)):
        print(_visible(line.rstrip("\r\n")))
    if not yes and not _agreed(path):
        print("nothing was written", file=sys.stderr)
        return 1
    _write(path, text, new)
    print(f"{recipe.title} is set up in {path}; {recipe.then}")
    return 0


def _visible(line: str) -> str:
    """Without what would do something to a terminal."""
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line)


def _agreed(path: Path) -> bool:
    if not sys.stdin.isatty():
        print("draftline: nobody is there to be asked; --yes writes it", file=sys.stderr)
        return False
    print(f"\nWrite this to {path}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _read(path: Path) -> str | None:
    """None when there is no such file."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        if path.is_symlink():
            raise SetupError(f"{path} is a link to a file that doesn't exist") from None
        return None
    except UnicodeDecodeError:
        raise SetupError(f"{path} isn't UTF-8; it was left alone") from None
    except OSError as error:
        raise SetupError(f"{path} can't be read: {error.strerror}") from None


def _write(path: Path, before: str | None, new: str) -> None:
    """Whole or not at all. A link stays one: configuration is often kept elsewhere."""
    if _read(path) != before:
        raise SetupError(f"{path} has changed meanwhile; it was left alone")
    target = path.resolve()
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(new.encode("utf-8"))
        if before is None:
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)
        else:
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise SetupError(f"{path} can't be written: {error.strerror}") from None
