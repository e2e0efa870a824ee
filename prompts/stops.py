"""When a completion is long enough: at the end of the line, or of the block that the syntax opened.

A stop rule is called with all text generated so far, after each token, and returns the length to keep, or None to go
on. Its answer depends on the text alone and not on how the text was cut into tokens: once it has said how much to
keep, it says so for every longer text. Each line is read once, however many tokens it has.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Literal

from prompts.syntax import CLOSING, LineLexer, closes_below, guess_family, indent_of, string_around

StopName = Literal["none", "line", "block"]

MAX_LINES = 20
"""A block ends at the first place after so many lines where nothing is left open."""
MAX_BLANK_LINES = 3
LINES_READ = 400
"""Of the prefix, to know whether the cursor stands in a string, and what the line above opened."""
LINES_BELOW = 100
LONGEST_LINE = 5000
"""Characters; of a longer line around the cursor only a part is read."""

_GOES_ON = frozenset((
    "else", "elif", "elsif", "elseif", "except", "rescue", "ensure", "finally", "catch",
    "case", "when", "default", "then", "do", "fi", "done", "esac", "end",
))  # fmt: skip
"""Words that begin a line of the same block although they stand as far left as its opening line."""
_ENDS_BLOCK = frozenset(("fi", "done", "esac", "end"))
_WORD = re.compile(r"\w+")
_ANNOTATION = re.compile(r"@[\w.]+(?:\(.*\))?$")
_CLOSES_ONLY = re.compile(r"[)\]}>,;:\"'`\s]*$")


def stop_rule(name: str, prefix: str, suffix: str) -> LineStop | BlockStop | None:
    """The rule of that name for a cursor between `prefix` and `suffix`; None for ``none``. One for each generation.

    ``line``: the rest of the line. With nothing but white space before the cursor, blank lines may come first.

    ``block``: the same, but where the line opens a block (it ends with a colon or an open bracket, or the line above
    did and the cursor's line is blank), on to the end of that block: the first line that is not further in, unless it
    closes or continues the block (``}``, ``else``). Never inside a bracket, string, here-document or Markdown fence
    that the text itself opened; after about MAX_LINES lines at the next such place.

    Both end before a line that repeats the next one of the suffix. Raises ValueError for another name.
    """
    if name == "none":
        return None
    if name == "line":
        return LineStop(prefix, suffix)
    if name == "block":
        return BlockStop(prefix, suffix)
    raise ValueError(f"there is no stop rule {name!r}; use 'none', 'line' or 'block'")


def choose_stop(prefix: str, suffix: str) -> Literal["line", "block"]:
    """The rule for ghost text: ``line`` where text follows on the cursor's line, otherwise ``block``.

    Closing brackets and quotes, which editors insert by themselves, don't count as text. ``block`` is ``line`` as long
    as the syntax opens nothing.
    """
    return "block" if _CLOSES_ONLY.match(suffix.partition("\n")[0]) else "line"


def _next_line(prefix: str, suffix: str) -> str:
    """The next line that has text, as it would look when a completion repeated it; empty without one.

    What follows the cursor on its own line counts, as a line that stands where the cursor's line begins.
    """
    rest, _, below = suffix.partition("\n")
    if rest.strip():
        line = prefix.rpartition("\n")[2]
        return line[: len(line) - len(line.lstrip())] + rest.strip()
    return next((line.rstrip() for line in below.split("\n", LINES_BELOW)[:LINES_BELOW] if line.strip()), "")


def _settled(text: str, line_is_blank: bool) -> int:
    """Only whole lines are sure: a later answer can take back the last one, white space, and one comma."""
    head, newline, _ = text.rpartition("\n")
    if newline:
        return len(head.rstrip(" \t\n,"))
    return 0 if line_is_blank else len(text.rstrip(" \t,"))


class LineStop:
    """The rule ``line``."""

    def __init__(self, prefix: str, suffix: str) -> None:
        self._line = prefix.rpartition("\n")[2]
        self._next = _next_line(prefix, suffix)

    def __call__(self, text: str, /) -> int | None:
        start = 0 if self._line.strip() else len(text) - len(text.lstrip())
        if text.count("\n", 0, start) > MAX_BLANK_LINES:
            return 0
        end = text.find("\n", start)
        if end < 0:
            return None
        begin = text.rfind("\n", 0, start) + 1
        line = self._line + text[:end] if begin == 0 else text[begin:end]
        if not self._line.strip() and line.rstrip() == self._next:
            return 0
        return len(text[:end].rstrip())

    def settled(self, text: str, /) -> int:
        return _settled(text, not self._line.strip())


class BlockStop:
    """The rule ``block``. What it remembers of a text only saves reading it again."""

    def __init__(self, prefix: str, suffix: str) -> None:
        above, _, line = prefix.rpartition("\n")
        self._line = line[-LONGEST_LINE:]
        self._next = _next_line(prefix, suffix)
        rest, _, below = suffix.partition("\n")
        self._closed_after = rest.strip()[:1] or below.strip()[:1]
        lines = [line[:LONGEST_LINE] for line in above.rsplit("\n", LINES_READ)[-LINES_READ:]] if above else []
        after = [line[:LONGEST_LINE] for line in (rest, *below.split("\n", LINES_BELOW)[:LINES_BELOW])]
        around = "\n".join([*lines, self._line + after[0], *after[1:]])
        self._guess = not around.strip()
        family = guess_family(around)
        self._above = LineLexer(family, quote=string_around(lines) if family == "other" else "")
        self._inside = None
        for line in lines:
            code = self._above.read(line)
            if line.strip():
                self._inside = self._above.indent if self._above.opens(code) else None
        self._above.unfinished = False
        if self._line.strip():
            self._inside = None
        self._above.enter_fence()
        self._owe_current_line(rest, below)
        self._forget()

    def _owe_current_line(self, rest: str, below: str) -> None:
        """What the cursor's own line opened is to be closed: brackets unless the rest of the line closes them.

        A string or fence unless the suffix seems to.
        """
        lexer = self._above.copy()
        lexer.read(self._line)
        opened = [one.closer for one in lexer.opened if one.line == lexer.lines]
        for character in takewhile(lambda c: opened, rest):
            if character == opened[-1]:
                opened.pop()
        self._owed = len(opened)
        is_new = lexer.quote != self._above.quote
        self._string_is_closed = is_new and closes_below(lexer.quote, [rest, *below.split("\n")])

    def _forget(self) -> None:
        self._seen = ""
        self._answer: int | None = None
        self._lexer = self._above.copy()
        self._base = self._inside
        self._at = self._number = self._kept = self._count = self._blank = 0
        self._begun = self._opened = self._string_owed = False
        self._tries: list[int] = []

    def settled(self, text: str, /) -> int:
        return _settled(text, not self._line.strip())

    def __call__(self, text: str, /) -> int | None:
        if not text.startswith(self._seen):
            self._forget()
        self._seen = text
        while self._answer is None:
            end = text.find("\n", self._at)
            line = text[self._at :] if end < 0 else text[self._at : end]
            if self._number == 0:
                line = self._line + line
            elif not self._begun and line.strip() and (end >= 0 or _is_decided(line)):
                self._begun = True
                if self._ends_before(line):
                    self._answer = self._cut(text)
                    break
            if end < 0:
                break
            self._answer = self._after(line, text, end)
            self._at, self._number, self._begun = end + 1, self._number + 1, False
        return self._answer

    def _pending(self) -> bool:
        """Whether the text has opened something that it has not closed."""
        lexer = self._lexer
        owed = self._string_owed and bool(lexer.quote or lexer.heredoc)
        return lexer.unfinished or owed or any(one.owed for one in lexer.opened)

    def _cut(self, text: str) -> int:
        """The end of the last line to keep, without a comma that JSON doesn't allow before a closing bracket."""
        kept = self._kept
        if self._lexer.family == "json" and text[:kept].endswith(",") and self._closed_after in tuple(CLOSING):
            kept = len(text[: kept - 1].rstrip())
        return kept

    def _ends_before(self, line: str) -> bool:
        if self._base is None or self._pending():
            return False
        if self._opened and self._lexer.family == "shell":
            return False  # its blocks need not be indented, but have a body
        indent = indent_of(line)
        return indent < self._base or (indent == self._base and not _goes_on(line))

    def _after(self, line: str, text: str, end: int) -> int | None:
        """The answer at the end of `line`, which ends at `end` in `text`."""
        if not line.strip():
            return self._after_blank(text)
        self._blank = 0
        if (self._number or not self._line.strip()) and self._repeats(line):
            return self._cut(text)
        code = self._read(line)
        self._kept = len(text[:end].rstrip())
        self._count += 1
        self._opened = opens = self._lexer.opens(code)
        if opens and self._base is None:
            self._base = self._lexer.indent
        word = _first_word(line)
        if word == "try":
            self._tries.append(indent_of(line))
        elif word in ("except", "finally", "catch") and self._tries[-1:] == [indent_of(line)]:
            self._tries.pop()
        if self._pending() or opens or _ANNOTATION.match(code.strip()):
            return None
        if self._base is None:
            return self._cut(text)
        if self._lexer.indent <= self._base:
            alone = code.strip() == "}" and self._lexer.family in ("brace", "other")  # `else` may follow
            if not alone and (code.lstrip()[:1] in tuple(CLOSING) or word in _ENDS_BLOCK):
                return self._cut(text)
        return self._cut(text) if self._count >= MAX_LINES and not self._tries else None

    def _after_blank(self, text: str) -> int | None:
        self._blank += 1
        self._lexer.unfinished = False
        if self._pending():
            return None
        ended = self._base is None and self._count > 0
        return self._cut(text) if ended or self._blank > MAX_BLANK_LINES else None

    def _read(self, line: str) -> str:
        lexer = self._lexer
        if self._guess and self._count == 0:
            lexer.family = guess_family(line)
        inside = lexer.quote or lexer.heredoc
        code = lexer.read(line)
        first = [one for one in lexer.opened if one.line == lexer.lines]
        if self._number == 0:
            theirs = [one for one in first if one.column < len(self._line)]
            for one in theirs[self._owed :]:  # what follows the cursor closes these
                first.remove(one)
                lexer.opened.remove(one)
        for one in first:
            one.owed = True
        if not inside and (lexer.quote or lexer.heredoc):
            self._string_owed = self._number > 0 or not self._string_is_closed
        return code

    def _repeats(self, line: str) -> bool:
        """Whether `line` is the suffix's next line; a closing line only if there is nothing of ours to close."""
        if not self._next or (self._string_owed and self._lexer.quote):
            return False
        if not _goes_on(line):
            return line.rstrip() == self._next
        same = line.rstrip().rstrip(",;") == self._next.rstrip(",;")
        first = self._above.lines + 1
        return same and not any(
            one.owed and (one.line > first or one.column >= len(self._line)) for one in self._lexer.opened
        )


def _first_word(line: str) -> str:
    match = _WORD.match(line.lstrip())
    return match.group() if match else ""


def _goes_on(line: str) -> bool:
    """Whether a line as far left as the block's opening line still belongs to the block."""
    return line.lstrip()[:1] in (*CLOSING, "{") or _first_word(line) in _GOES_ON


def _is_decided(line: str) -> bool:
    """Whether the line's first word is complete, or can't become one that continues a block."""
    word = line.lstrip()
    return _first_word(line) != word or not any(one.startswith(word) for one in _GOES_ON)
