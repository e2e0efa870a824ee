"""Stop strings of the OpenAI API as a stop rule: the text ends before the first, also where one spans tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """A stop rule for ``GenerationRequest``; one for each request."""

    def __init__(self, strings: Sequence[str]) -> None:
        """strings: none of them empty."""
        self._strings = tuple(strings)
        self._longest = max(len(s) for s in strings)
        self._searched = 0

    def __call__(self, text: str) -> int | None:
        """Where the earliest stop string begins in all text so far, None when there is none."""
        start = max(0, min(self._searched, len(text)) - self._longest)
        self._searched = len(text)
        found = [place for s in self._strings if (place := text.find(s, start)) >= 0]
        return min(found, default=None)

    def settled(self, text: str) -> int:
        """How much of the text can be shown now: all but what may turn out to be the beginning of a stop string."""
        return len(text) - max(
            (n for s in self._strings for n in range(1, len(s)) if text.endswith(s[:n])),
            default=0,
        )
