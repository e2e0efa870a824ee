"""The parts of a prompt as they travel from a client to the engine: text with a role, not yet tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["repo", "file", "suffix", "prefix", "text", "system", "user"]
"""repo: the repository's name; file: another file (path + content); suffix and prefix: the current file after and
before the cursor; text: plain text without any marker (the ``plain`` route). system and user: parts of the two messages
of a chat."""


@dataclass(frozen=True)
class Segment:
    """One part of a prompt, tokenised by itself, so that its borders are token borders.

    text: LF line ends only. path: shown to the model for ``file`` and for the first part of the current file.
    source: where it came from, for people ("current", "open file", ...). checkpoint: a state checkpoint at this
    segment's end is worth keeping.
    """

    role: Role
    text: str
    source: str
    path: str | None = None
    checkpoint: bool = False
