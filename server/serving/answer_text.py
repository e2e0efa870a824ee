"""From an answer's tokens to text that can be shown: whole characters, nothing beyond the stop, no special token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.request import StopRule, TextEvent

if TYPE_CHECKING:
    from server.model.tokenizer import Tokenizer


class AnswerText:
    """The text of one answer while it grows.

    A stop rule may end the text earlier than where it fires (a block ends before the line that isn't part of
    it). So with a rule, text is shown only when the rule says that it is settled.
    """

    def __init__(self, tokenizer: Tokenizer, stop: StopRule | None) -> None:
        self._stream = tokenizer.stream(user_defined=False)
        self._hidden = tokenizer.hidden_tokens
        self._stop = stop
        self._text = ""
        self._shown = 0
        self._tokens = 0

    def push(self, token: int) -> bool:
        """Add a token; True when the stop rule ended the text."""
        self._tokens += 1
        return False if token in self._hidden else self._add(self._stream.push(token))

    def take(self) -> TextEvent | None:
        """What can be shown now and wasn't yet."""
        return self._show(len(self._text) if self._stop is None else self._stop.settled(self._text))

    def finish(self, stopped: bool) -> TextEvent | None:
        """The rest, once no token follows."""
        if not stopped:
            self._add(self._stream.flush())
        return self._show(len(self._text))

    def _add(self, piece: str) -> bool:
        if not piece:
            return False
        self._text += piece
        keep = None if self._stop is None else self._stop(self._text)
        if keep is None:
            return False
        self._text = self._text[: max(keep, self._shown)]
        return True

    def _show(self, end: int) -> TextEvent | None:
        if end <= self._shown:
            return None
        event = TextEvent(self._text[self._shown : end], self._tokens)
        self._shown, self._tokens = end, 0
        return event
