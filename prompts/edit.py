"""The prompt of an edit, and how the new text is read out of the answer: pure functions of text.

A chat model gets the file with the lines to change set apart, and answers with their new text between fences. A model
that only fills in the middle gets the old lines as an earlier file and the instruction as a comment, and answers with
the new text alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from prompts.fences import fence_for
from prompts.segments import Segment

Format = Literal["chat", "fim"]

SYSTEM = (
    "You edit source code. You get a file with some of its lines set apart, and an instruction. Answer with the new "
    "text of these lines and nothing else, between two lines of {fence}. Keep their indentation, and everything that "
    "the instruction doesn't ask to change."
)
EXPLAIN = (
    "You answer a programmer who knows the language about some lines of a file: what they do, why, and what is "
    "surprising about them. Write Markdown."
)
_HASH, _SLASHES = "# ", "// "
_COMMENTS = dict.fromkeys(("json", "javascript", "typescript", "tsx", "rust", "go", "c", "cpp", "java"), _SLASHES)
_COMMENTS["markdown"] = "<!-- "
_ENDS = {"<!-- ": " -->"}


@dataclass(frozen=True)
class Around:
    """Lines of a file, without their ends: those to change, and what the prompt has room for before and after them."""

    path: str | None
    language: str
    before: tuple[str, ...]
    lines: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class EditPrompt:
    """prediction: what the answer is expected to copy from. fence: what the answer's code stands between; empty where
    it is the whole answer."""

    segments: tuple[Segment, ...]
    prediction: str
    fence: str = ""


def edit_prompt(around: Around, instruction: str, form: Format) -> EditPrompt:
    """instruction: one or more lines of what is to be done."""
    return _chat(around, instruction) if form == "chat" else _fim(around, instruction)


def question(around: Around, text: str) -> EditPrompt:
    """For a chat model: an answer about the lines, not instead of them."""
    fence = fence_for((*around.before, *around.lines, *around.after))
    return EditPrompt((_segment("system", EXPLAIN), _segment("user", f"{_shown(around, fence)}\n{text}\n")), "")


def answered(text: str, prompt: EditPrompt) -> tuple[list[str] | None, bool]:
    """The new lines so far in the answer so far, the last one perhaps unfinished; and whether their end has come.

    None as long as they have not begun. Where the code is the whole answer, its end is the answer's.
    """
    text = text.replace("\r\n", "\n")
    if not prompt.fence:
        return text.split("\n"), False
    lines = text.rpartition("</think>")[2].split("\n")
    begin = next((n for n, line in enumerate(lines) if _opens(line, prompt.fence)), None)
    if begin is None or begin == len(lines) - 1:
        return None, False
    fence = _backticks(lines[begin])
    inside = 0  # blocks of the text's own, with a language's name where they begin
    for n in range(begin + 1, len(lines)):
        if lines[n].strip() == fence:
            if not inside:
                return lines[begin + 1 : n], True
            inside -= 1
        elif _backticks(lines[n]) == fence and _opens(lines[n], fence):
            inside += 1
    return lines[begin + 1 :], False


def _chat(around: Around, instruction: str) -> EditPrompt:
    fence = fence_for((*around.before, *around.lines, *around.after, instruction))
    user = f"{_shown(around, fence)}\n{instruction}\n"
    copied = "\n".join((fence + around.language, *around.lines, fence))
    segments = (_segment("system", SYSTEM.format(fence=fence)), _segment("user", user))
    return EditPrompt(segments, copied, fence)


def _shown(around: Around, fence: str) -> str:
    name = f"The file {around.path}" if around.path else "A file"
    parts = [f"{name}:\n"]
    for words, lines in (
        ("Before these lines:", around.before),
        ("The lines:", around.lines),
        ("After them:", around.after),
    ):
        if lines or words == "The lines:":
            parts.append("\n".join((words, fence + around.language, *lines, f"{fence}\n")))
    return "\n".join(parts)


def _fim(around: Around, instruction: str) -> EditPrompt:
    begin = _COMMENTS.get(around.language, _HASH)
    margin = next((line[: len(line) - len(line.lstrip())] for line in around.lines if line.strip()), "")
    comment = [f"{margin}{begin}{line}{_ENDS.get(begin, '')}" for line in instruction.split("\n")]
    old, path = "".join(f"{line}\n" for line in around.lines), around.path or "untitled"
    segments = [
        Segment("file", old, "the lines to change", path),
        Segment("suffix", "".join(f"{line}\n" for line in around.after), "current", path),
        Segment("prefix", "".join(f"{line}\n" for line in (*around.before, *comment)), "current"),
    ]
    return EditPrompt(tuple(segments), old)


def _segment(role: Literal["system", "user"], text: str) -> Segment:
    return Segment(role, text, "current" if role == "user" else "how to answer")


def _backticks(line: str) -> str:
    """Those that a line begins with."""
    found = line.strip()
    return found[: len(found) - len(found.lstrip("`"))]


def _opens(line: str, fence: str) -> bool:
    """A fence as long as this one at least, and perhaps a language's name."""
    found = line.strip()
    return found.startswith(fence) and re.fullmatch(r"\s*[\w+#.-]*", found.lstrip("`")) is not None
