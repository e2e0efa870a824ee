"""How many brackets and quotes of a text have no partner: two texts are compared by it, so a guess that is wrong for
both does no harm.

Comments and strings are stepped over as the language has them; in a language that isn't known, what stands in double
quotes is a string.
"""

from __future__ import annotations

import re

_DOUBLE, _SINGLE = r"\"(?:[^\"\\\n]|\\.)*\"", r"'(?:[^'\\\n]|\\.)*'"
_TRIPLE = r"\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"
_BACKTICK = r"`(?:[^`\\]|\\.)*`"
_C_COMMENT = r"(?<!:)//[^\n]*|/\*.*?\*/"
_TYPOGRAPHY = r"(?<=\w)'(?=\w)"

_SKIP = {
    "python": rf"\#[^\n]*|{_TRIPLE}|{_DOUBLE}|{_SINGLE}",
    "javascript": rf"{_C_COMMENT}|{_DOUBLE}|{_SINGLE}|{_BACKTICK}",
    "java": rf"{_C_COMMENT}|{_TRIPLE}|{_DOUBLE}|{_SINGLE}",
    "c": rf"{_C_COMMENT}|{_DOUBLE}|{_SINGLE}|(?<=\d)'(?=\d)",
    "go": rf"{_C_COMMENT}|{_DOUBLE}|{_SINGLE}|`[^`]*`",
    "rust": rf"{_C_COMMENT}|{_DOUBLE}|'(?:[^'\\\n]|\\[^\n]+?)'|'[a-z_]\w*",
    "json": _DOUBLE,
    "yaml": rf"(?:^|(?<=\s))\#[^\n]*|{_DOUBLE}|{_TYPOGRAPHY}|(?:(?<=\s)|(?<=[\[{{,])){_SINGLE}",
    "bash": r"(?:^|(?<=[\s;]))\#[^\n]*|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"",
    "markdown": rf"```.*?```|`[^`\n]*`|{_TYPOGRAPHY}|'|\"|[(){{}}]",  # prose: :) and an apostrophe mean nothing
    "": _DOUBLE,
}
_SKIP |= {"typescript": _SKIP["javascript"], "tsx": _SKIP["javascript"], "cpp": _SKIP["c"]}
_QUOTES = {"json": '"', "yaml": '"', "": '"', "rust": '"', "markdown": "", "tsx": '"', "go": "\"'`"}
_TOKENS = {
    language: re.compile(rf"(?:{skipped})|([()\[\]{{}}\"'`])", re.DOTALL | re.MULTILINE)
    for language, skipped in _SKIP.items()
}
_PAIRS = {")": "(", "]": "[", "}": "{"}


def unbalanced(text: str, language: str = "") -> int:
    """Brackets without a partner, and quotes that begin no whole string."""
    tokens = _TOKENS.get(language, _TOKENS[""])
    quotes = _QUOTES.get(language, "\"'`" if language in ("javascript", "typescript") else "\"'")
    stack: list[str] = []
    alone = 0
    for match in tokens.finditer(text):
        token = match.group(1)
        if token is None:
            continue
        if token in "([{":
            stack.append(token)
        elif token in quotes:
            alone += 1
        elif token in _PAIRS:
            if stack and stack[-1] == _PAIRS[token]:
                stack.pop()
            elif language != "bash" or token != ")":  # a pattern of a shell's case ends with one
                alone += 1
    return alone + len(stack)
