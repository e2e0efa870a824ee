"""Reads text line by line, far enough to know what is still open: brackets, strings, shell words, a Markdown fence.

No grammar and no language name: a stop rule works on any file, on text that is not finished, and for every token. Where
the guess is wrong, a completion ends a line early or late; nothing depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

Family = Literal["json", "shell", "brace", "other"]
"""What decides how comments and strings are read; ``other`` is Python, Markdown, YAML and whatever else."""

OPENING, CLOSING = "([{", ")]}"
_PAIRS = dict(zip(OPENING, CLOSING, strict=True))
_SHELL_PAIRS = {"if": "fi", "do": "done", "case": "esac"}
_SHELL_LEADS = {"then", "do", "else", "elif", "if", "while", "until", "!", "time"}
"""After these words, a shell expects a command."""

_BRACKETS = r"(?P<open>[(\[{])|(?P<close>[)\]}])"
_TOKENS: dict[Family, re.Pattern[str]] = {
    "json": re.compile(rf'(?P<quote>")|{_BRACKETS}'),
    "shell": re.compile(
        rf"(?P<escape>\\.)|(?P<comment>(?:^|(?<=[\s;]))\#.*)|(?P<quote>[\"'])|(?<!<)<<-?\s*[\"']?(?P<heredoc>[A-Za-z_]\w*)"
        rf"|{_BRACKETS}|(?P<separator>[;&|]+)|(?P<word>[^\s;&|(){{}}\[\]\"'\\<>]+)"
    ),
    "brace": re.compile(rf"(?P<escape>\\.)|(?P<comment>(?<!:)//.*)|(?P<quote>/\*|`|\"|(?<!\w)')|{_BRACKETS}"),
    "other": re.compile(
        r"(?P<fence>^\s*(?:`{3,}[^`]*$|~{3,}.*))|(?P<escape>\\.)|(?P<comment>(?<![\w$#{&/(\"'])\#.*)"
        rf"|(?P<quote>\"\"\"|\"|`|(?:(?<!\w)|(?<=\b[fFrRbBuU])|(?<=\b[rRbBfF][rRbBfF]))(?:'''|'))|{_BRACKETS}"
    ),
}
_SPANS_LINES: dict[Family, tuple[str, ...]] = {
    "json": (),
    "shell": ('"', "'"),
    "brace": ("`", "*/"),
    "other": ('"""', "'''"),
}
_ESCAPABLE = {quote: re.compile(rf"(?:[^\\]|\\.)*?{quote}") for quote in ('"', "'", "`", '"""', "'''")}

_JSON = re.compile(r"\s*(?!\[\[\w)[\[{]\s*(?:$|[\"\[{\]}\d-]|true\b|false\b|null\b)")
_FENCE = re.compile(r"^\s*(?:```|~~~)", re.MULTILINE)
_SHELL = re.compile(r"\A#!.*sh\b|^\s*(?:fi|done|esac|then|do)\s*$|;\s*(?:then|do)\s*$", re.MULTILINE)
_SLASHES = re.compile(r"[^;];[ \t]*$|^\s*(?://|/\*)", re.MULTILINE)
_UNFINISHED = {
    "json": re.compile(r"(?!)"),
    "shell": re.compile(r"(?:\\|\||&&)$|^\s*elif\b(?!.*\bthen\b)"),
    "brace": re.compile(r"(?:\\|=>|(?<![+=])[=+?]|\|\||&&)$"),
    "other": re.compile(r"\\$|^\s*\|.*\|$"),  # a row of a Markdown table belongs to the rows below
}
_STRING_PREFIX = re.compile(r"\b[rRbBuUfF]{1,2}(?=\"\"\"|''')")
_BODY_FOLLOWS = re.compile(r"(?:^|[;)}])\s*(?:then|do|else|try|finally)$")


def guess_family(text: str) -> Family:
    """The family of a text from what gives it away; two lines that end with a semicolon are needed for ``brace``."""
    if _JSON.match(text):
        return "json"
    if _FENCE.search(text):
        return "other"
    if _SHELL.search(text):
        return "shell"
    return "brace" if len(_SLASHES.findall(text)) > 1 else "other"


def indent_of(line: str) -> int:
    """Columns of white space a line begins with, a tab reaching to the next multiple of four."""
    return len(line[: len(line) - len(line.lstrip())].expandtabs(4))


@dataclass
class Opened:
    """A bracket, or a shell word, that waits for `closer`."""

    closer: str
    line: int
    column: int
    indent: int
    owed: bool = False
    """The text being written has to close it."""


@dataclass
class LineLexer:
    """What is open after the lines read so far."""

    family: Family
    opened: list[Opened] = field(default_factory=list)
    quote: str = ""
    """What ends the string, comment or fence that the last line left open."""
    fence: str = ""
    """The Markdown fence around the code that is read; it is no string then."""
    heredoc: str = ""
    unfinished: bool = False
    """The last line asks for another one: a backslash, a pipe."""
    lines: int = 0
    indent: int = 0
    """Of the last line, or of an earlier one that it belongs to or whose brackets it closed."""

    def copy(self) -> LineLexer:
        return replace(self, opened=[replace(one) for one in self.opened])

    def read(self, line: str) -> str:
        """Read one line without its line break; return its code: no comment, no trailing white space."""
        self.lines += 1
        goes_on = self.unfinished or self.quote or self.heredoc
        self.indent = min(self.indent, indent_of(line)) if goes_on else indent_of(line)
        self.unfinished = False
        if self.heredoc:
            self.heredoc = "" if line.strip() == self.heredoc else self.heredoc
            return ""
        at = 0
        if self.quote:
            at = self._after_quote(line, 0)
            if at < 0:
                return ""
            self.quote = ""
        code = self._read_code(line, at).rstrip()
        self.unfinished = bool(_UNFINISHED[self.family].search(code))
        return code

    def opens(self, code: str) -> bool:
        """Whether the line just read, whose code this is, opens a block: the next line stands further in."""
        if self.quote or self.heredoc:
            return False
        if self.family in ("shell", "brace") and _BODY_FOLLOWS.search(code):
            return True
        return code.endswith((":", *OPENING)) or any(one.line == self.lines for one in self.opened)

    def enter_fence(self) -> None:
        """Read what stands in the open Markdown fence as code from here on."""
        if self.quote[:3] in ("```", "~~~"):
            self.fence, self.quote = self.quote, ""

    def _read_code(self, line: str, at: int) -> str:
        command = True
        heredoc = ""
        while match := _TOKENS[self.family].search(line, at):
            at = match.end()
            kind, token = match.lastgroup, match.group(match.lastgroup or 0)
            if kind == "comment":
                return line[: match.start()]
            if kind == "fence":
                if self.fence:
                    self.fence = "" if _closes_fence(line, self.fence) else self.fence
                    return ""
                fence = token.strip()
                self.quote = fence[: len(fence) - len(fence.lstrip(fence[0]))]
                return line
            if kind == "quote":
                self.quote = "*/" if token == "/*" else token
                end = self._after_quote(line, at)
                if end < 0 and self.quote in _SPANS_LINES[self.family]:
                    return line
                self.quote = ""
                at = max(at, end)  # without an end it is an apostrophe
                command = False
            elif kind == "open":
                self._open(_PAIRS[token], match.start())
                command = token == "(" or (token == "{" and line[match.start() - 1 : match.start()] != "$")
            elif kind == "close":
                self._close(token)
                command = True
            elif kind == "separator":
                command = True
            elif kind == "heredoc":
                heredoc = token
            elif kind == "word":
                if command and token in _SHELL_PAIRS:
                    self._open(_SHELL_PAIRS[token], match.start())
                elif command and token in _SHELL_PAIRS.values():
                    self._close(token)
                command = command and token in _SHELL_LEADS
        self.heredoc = heredoc
        return line

    def _open(self, closer: str, column: int) -> None:
        self.opened.append(Opened(closer, self.lines, column, self.indent))

    def _close(self, token: str) -> None:
        if self.opened and self.opened[-1].closer == token:  # others are not ours, like the ) of a shell's case
            self.indent = min(self.indent, self.opened.pop().indent)

    def _after_quote(self, line: str, at: int) -> int:
        """Where the open string ends in `line` from `at` on; -1 when it doesn't."""
        if self.quote[0] in "`~" and len(self.quote) > 2:
            return len(line) if _closes_fence(line, self.quote) else -1
        if self.quote == "*/" or (self.quote == "'" and self.family == "shell"):
            end = line.find(self.quote, at)
            return end + len(self.quote) if end >= 0 else -1
        match = _ESCAPABLE[self.quote].match(line, at)
        return match.end() if match else -1


def string_around(lines: list[str]) -> str:
    """What ends the triple-quoted string that `lines` seem to begin in; empty when they seem to begin in code.

    Lines with one such quote begin and end a string in turn. Text after it tells that it begins one, text before it
    that it ends one; the majority says with which kind the lines start.
    """
    for quote in _SPANS_LINES["other"]:
        votes, turn = 0, 1
        above = ""
        for line in lines:
            if line.count(quote) == 1:
                before, _, after = (part.strip() for part in _STRING_PREFIX.sub("", line).partition(quote))
                begins = not before or before[-1] in "=(,[{:"
                ends = not after or after[0] in "),.]}%"
                if begins != ends:
                    votes += turn if begins else -turn
                elif not before and above.endswith(":"):
                    votes += turn
                turn = -turn
            above = line.rstrip() or above
        if votes < 0:
            return quote
    return ""


def closes_below(quote: str, lines: list[str]) -> bool:
    """Whether `lines` seem to close an open string or Markdown fence that ends with `quote`; a guess, not a reading."""
    if quote[:3] in ("```", "~~~"):
        first = next((line for line in lines if line.lstrip().startswith(quote)), "")
        return _closes_fence(first, quote)  # with more words on it, it opens the next one
    return bool(quote) and sum(line.count(quote) for line in lines) % 2 == 1


def _closes_fence(line: str, fence: str) -> bool:
    return line.strip().startswith(fence) and not line.strip().strip(fence[0])
