"""Where the open files define which name, found by how definitions begin in the languages with braces and in Python.

A name that is missed, or found where it isn't one, costs an excerpt; nothing else depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prompts.syntax import LineLexer, guess_family, indent_of
from prompts.text import SourceFile, SourceText

LONGEST = 16
"""Lines of an excerpt at most."""
AMBIGUOUS = 3
"""A name with so many definitions in other files says nothing about which one is meant."""

_DEFINITION = re.compile(
    r"^[ \t]*(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|inline|unsafe|override"
    r"|pub(?:\([\w:]+\))?)\s+)*(?:def|class|func|function|fn|fun|struct|enum|interface|trait|protocol|type)\s+"
    r"(?:\([^)]*\)\s*)?(?P<name>[A-Za-z_]\w*)"
)
_CONSTANT = re.compile(r"^(?:(?:export\s+)?const\s+)?(?P<name>[A-Z][A-Z0-9_]{2,})\s*(?::[^=]+)?=(?!=)")
_NAME = re.compile(r"[A-Za-z_]\w{2,}")
_FAMILY_LINES = 60


def names_in(text: str) -> list[str]:
    """The names in a text in their order, each once; those of one or two letters are left out."""
    return list(dict.fromkeys(_NAME.findall(text)))


class SymbolIndex:
    """Definitions by name, read again for the files that changed."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[SourceText, dict[str, list[int]]]] = {}

    def update(self, files: Sequence[SourceFile]) -> bool:
        """Hold exactly these files, which have paths. Returns whether anything is other than before."""
        known, self._files = self._files, {}
        for file in files:
            assert file.path is not None
            held = known.get(file.path)
            same = held is not None and held[0] is file.text
            self._files[file.path] = held if held is not None and same else (file.text, _definitions(file.text))
        return known != self._files

    def find(self, name: str) -> list[tuple[str, str]]:
        """Path and excerpt of each definition of ``name``; none where there are too many to mean one of them."""
        places = [(path, text, at) for path, (text, names) in self._files.items() for at in names.get(name, ())]
        if len(places) >= AMBIGUOUS:
            return []
        return [(path, _excerpt(text, at)) for path, text, at in places]


def _definitions(text: SourceText) -> dict[str, list[int]]:
    names: dict[str, list[int]] = {}
    for at, line in enumerate(text.lines):
        if match := _DEFINITION.match(line) or _CONSTANT.match(line):
            names.setdefault(match["name"], []).append(at)
    return names


def _excerpt(text: SourceText, at: int) -> str:
    """The header of the definition in line ``at``, and of what is defined directly in it, whole lines."""
    family = guess_family("\n".join(text.lines[max(at - _FAMILY_LINES // 2, 0) : at + _FAMILY_LINES]))
    outer, inner = indent_of(text.lines[at]), None
    kept: list[str] = []
    lexer = LineLexer(family)
    open_header = True
    for place in range(at, min(at + 400, len(text.lines))):
        line = text.lines[place]
        if place > at and not open_header:
            if line.strip() and indent_of(line) <= outer:
                break
            if not _DEFINITION.match(line):
                continue
            inner = indent_of(line) if inner is None else inner
            if indent_of(line) > inner:
                continue
            lexer = LineLexer(family)
        kept.append(line + "\n")
        code = lexer.read(line)
        open_header = not code.endswith(("{", ":")) and bool(lexer.opened or lexer.quote or lexer.unfinished)
        if len(kept) == LONGEST:
            break
    return "".join(kept)
