"""Filling in the middle with a chat model that has no markers for it: the file as a message, the answer begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prompts.fences import fence_for
from prompts.segments import Segment

SYSTEM = (
    "You complete source code at a cursor. You get other files, what stands after the cursor and what stands before "
    "it. Answer with what belongs at the cursor and nothing else, between two lines of {fence}, beginning with the "
    "cursor's own line."
)


@dataclass(frozen=True)
class ChatFill:
    """begun: what the answer begins with, so that the model goes on at the cursor: a fence and the cursor's line."""

    system: str
    user: str
    begun: str


def chat_fill(segments: Sequence[Segment]) -> ChatFill:
    """segments: of a fill-in-the-middle prompt. What changes while one types stands last."""
    fence = fence_for(line for segment in segments for line in segment.text.split("\n"))
    texts = {role: "".join(s.text for s in segments if s.role == role) for role in ("prefix", "suffix")}
    path = next((s.path for s in segments if s.role in ("prefix", "suffix") and s.path), None)
    parts = [f"The file {s.path}:\n{fence}\n{_ended(s.text)}{fence}\n" for s in segments if s.role == "file"]
    name = f"The file {path}" if path else "The file"
    parts.append(f"{name}, after the cursor:\n{fence}\n{_ended(texts['suffix'])}{fence}\n")
    parts.append(f"Before the cursor:\n{fence}\n{_ended(texts['prefix'])}{fence}\n")
    return ChatFill(SYSTEM.format(fence=fence), "\n".join(parts), f"{fence}\n{texts['prefix'].rpartition(chr(10))[2]}")


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"
