"""Whether an answer may take the place of the old lines, and how: its indentation, its blank ends, its syntax."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from lsp.balance import unbalanced
from lsp.fit import count_faults
from lsp.languages import parser_of

LONGEST_PARSED = 1_000_000
"""Characters; in a longer file brackets and quotes of the changed lines are counted, and no grammar is asked."""


class Refused(Exception):  # noqa: N818
    """An answer that isn't applied. str() says why, for people."""


def fitted(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The new lines with the old ones' margin, where a model has left it out, and their blank lines at both ends."""
    lines = _trimmed(new)
    if not any(line.strip() for line in old):
        return lines
    missing = _margin(old)
    kept = {line for line in old if line.strip()} & set(lines)  # they stand where they stood: so do the others
    if missing and lines and not kept and not lines[0][:1].isspace():
        lines = [missing + line if line.strip() else line for line in lines]
    lead = next((n for n, line in enumerate(old) if line.strip()), 0)
    tail = next((n for n, line in enumerate(reversed(old)) if line.strip()), 0)
    return [*old[:lead], *lines, *old[len(old) - tail :]]


def check_syntax(
    before: Sequence[str], old: Sequence[str], new: Sequence[str], after: Sequence[str], language: str
) -> None:
    """Raises Refused where the file parsed better with the old lines than with the new ones."""
    old_text, new_text = ("\n".join((*before, *lines, *after)) for lines in (old, new))
    parser = parser_of(language)
    if parser is None or len(old_text) > LONGEST_PARSED:
        if unbalanced("\n".join(new), language) > unbalanced("\n".join(old), language):
            raise Refused("the answer leaves brackets or quotes open")
        return
    faults = count_faults(parser, old_text)
    found = count_faults(parser, new_text)
    if found > faults:
        more = "a syntax error" if found == faults + 1 else f"{found - faults} syntax errors"
        raise Refused(f"the answer puts {more} into the file")
    if language == "python" and _compiles(old_text) and not _compiles(new_text):
        raise Refused("the answer puts a syntax error into the file")


def _compiles(text: str) -> bool:
    """By Python itself, whose rules of indentation and of empty blocks the grammar doesn't have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "document", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _trimmed(lines: Sequence[str]) -> list[str]:
    written = [n for n, line in enumerate(lines) if line.strip()]
    return list(lines[written[0] : written[-1] + 1]) if written else []


def _margin(lines: Sequence[str]) -> str:
    """The white space that all lines begin with."""
    written = [line for line in lines if line.strip()]
    if not written:
        return ""
    first, last = min(written), max(written)
    length = next((n for n, c in enumerate(first) if n >= len(last) or c != last[n] or c not in " \t"), len(first))
    return first[:length]
