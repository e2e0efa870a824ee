"""Our lines in a configuration file that is a program or has sections: between two marks, to be found again."""

from __future__ import annotations


class CantEdit(Exception):  # noqa: N818
    """The file is left as it is. str() says why, as the end of a sentence that begins with its name."""


BEGIN, END = ">>> draftline setup", "<<< draftline setup"


def with_block(text: str, lines: list[str], comment: str) -> str:
    """``text`` with our lines: in the place of those an earlier call wrote, else at the end.

    comment: what begins a comment in such a file. Raises CantEdit where the marks don't match, and where the file
    mentions Draftline elsewhere: somebody has set it up by hand, and two are one too many.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    block = newline.join([f"{comment} {BEGIN}", *lines, f"{comment} {END}"])
    before, found, after = text.partition(f"{comment} {BEGIN}")
    if not found:
        if END in text:
            raise CantEdit("has the end of what setup wrote, but not its beginning")
        _refuse_mention(text)
        gap = "" if not text else newline if text.endswith("\n") else 2 * newline
        return text + gap + block + newline
    _, ended, rest = after.partition(f"{comment} {END}")
    if not ended or BEGIN in rest or BEGIN in before:
        raise CantEdit("has the beginning of what setup wrote more than once, or not its end")
    _refuse_mention(before + rest)
    return before + block + rest


def _refuse_mention(text: str) -> None:
    if "draftline" in text.lower():
        raise CantEdit("mentions draftline already, outside of what setup writes")
