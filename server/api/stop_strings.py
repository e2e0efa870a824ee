"""Stop strings of the OpenAI API as a stop rule: the text ends before the first, also where one spans tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """A stop rule for ``GenerationRequest``; one for each request, whose text only grows.

    Each place of the text is given up once, so the work is linear in the text whatever the strings are.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """strings: none of them empty."""
        self._strings = tuple(strings)
        self._longest = max(len(s) for s in strings)
        self._searched = 0
        self._held = 0  # no stop string begins before it

    def __call__(self, text: str) -> int | None:
        """Where the earliest stop string begins in all text so far, None when there is none."""
        start = max(0, min(self._searched, len(text)) - self._longest)
        self._searched = len(text)
        found = [place for s in self._strings if (place := text.find(s, start)) >= 0]
        return min(found, default=None)

    def settled(self, text: str) -> int:
        """How much of the text can be shown now: all but what may turn out to be the beginning of a stop string."""
        while self._held < len(text):
            rest = text[self._held : self._held + self._longest]
            if any(s.startswith(rest) for s in self._strings):
                break
            self._held += 1
        return self._held
