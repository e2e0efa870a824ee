"""Stop strings of the OpenAI API: the text ends before the first of them, also where one spans several tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """``rule`` ends the generation in the engine; ``push`` keeps the beginning of a stop string off the stream."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._longest = max((len(s) for s in strings), default=0)
        self._searched = 0
        self._held = ""
        self._ended = False

    def rule(self, text: str) -> int | None:
        """Where the earliest stop string begins in all text so far, None when there is none."""
        start = max(0, min(self._searched, len(text)) - self._longest)
        self._searched = len(text)
        found = [place for s in self._strings if (place := text.find(s, start)) >= 0]
        return min(found, default=None)

    def push(self, text: str) -> str:
        """What of the text so far can be shown for certain. Nothing more after a stop string."""
        if self._ended:
            return ""
        held = self._held + text
        found = [place for s in self._strings if (place := held.find(s)) >= 0]
        if found:
            self._ended = True
            self._held = ""
            return held[: min(found)]
        keep = max((n for s in self._strings for n in range(1, len(s)) if held.endswith(s[:n])), default=0)
        shown = held[: len(held) - keep]
        self._held = held[len(held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held
