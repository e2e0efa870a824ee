"""Drafts copied from a prediction: how many pay, judged by what copies yielded in this answer and what cycles cost.

Whether the token ahead comes true depends on how many tokens before it were copied (its *run*), so a probability is
kept for every size of run. It learns from every token of the answer, drafted or not. With it, n copied drafts
give 1 + Σ P(drafts 1..j right) tokens in the seconds of such a cycle, and the n of the most tokens per second is taken
unless the engine makes more of them without copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.speculation.prediction import Prediction

LENGTHS = (1, 3, 7, 15)
"""Copied drafts of a cycle. Few numbers: each is measured often, and a kernel needs few plans. With the last token
before them they fill 8 and 16 rows, between which a GPU's cycle gets longer by a step."""

_RIGHT = (0.5, 0.35, 0.6, 0.85, 0.95, 0.98)
"""How often the token ahead came true behind runs of 0 (the answer's beginning), 1, 2, 4, 8 and 16 tokens or more,
in the edits of this repository's history."""
_RATE = 0.1


class CopyTimes:
    """Seconds of a cycle with n copied drafts, level · shape(n). One per engine, fed by all its answers.

    The level follows the machine's mood. A shape moves with its own cycles alone, and without news all of them fade to
    a guess: a few slow long cycles must not forbid long ones, and their own correction, for ever.
    """

    GUESS, FADE = 0.1, 0.002

    def __init__(self) -> None:
        self.level = 0.0
        """Seconds of a cycle without drafts; 0 before anything was measured."""
        self._guess = {length: 1 + self.GUESS * length for length in LENGTHS}
        self._shape = dict(self._guess)
        self._count = 0

    def seconds(self, length: int) -> float:
        """Of a cycle with so many drafts, one of LENGTHS; in units of one without any before anything was measured."""
        return (self.level or 1.0) * self._shape[length]

    def add(self, length: int, seconds: float) -> None:
        seconds = max(seconds, 1e-9)
        self._count += 1
        if self._count <= 2:  # the slower of the first two set up the kernels
            self.level = min(self.level or seconds, seconds / self._shape[length])
            return
        error = max(-0.5, min(0.5, seconds / self.seconds(length) - 1))
        self.level *= 1 + 0.1 * error
        self._shape[length] *= 1 + 0.1 * error
        for n, guess in self._guess.items():
            self._shape[n] += self.FADE * (guess - self._shape[n])


class Copies:
    """Drafts one answer from a text that it is expected to copy in part."""

    def __init__(self, old: Sequence[int], times: CopyTimes) -> None:
        self._prediction = Prediction(old)
        self._times = times
        self._right = list(_RIGHT)

    def propose(self, limit: int, rate: float) -> list[int]:
        """As many copied drafts as pay, ``limit`` at most, or none.

        rate: tokens per second that the engine makes without copies; 0 when that isn't known.
        """
        ahead = self._prediction.ahead(min(limit, LENGTHS[-1]))
        level = self._times.level
        best, most = 0, max(rate, 1 / level) if level else 1.0
        reach, expected = 1.0, 1.0
        for length in range(1, len(ahead) + 1):
            reach *= self._right[_size(self._prediction.run + length - 1)]
            expected += reach
            if length in LENGTHS and expected / self._times.seconds(length) > most:
                best, most = length, expected / self._times.seconds(length)
        return ahead[:best]

    def push(self, tokens: Sequence[int]) -> None:
        """The answer's next tokens."""
        for token in tokens:
            size = _size(self._prediction.run)
            right = self._prediction.push(token)
            if right is not None:
                self._right[size] += _RATE * (right - self._right[size])

    def observe(self, drafts: int, seconds: float) -> None:
        """How long a cycle took that verified so many copied drafts."""
        self._times.add(drafts, seconds)


def _size(run: int) -> int:
    return min(len(_RIGHT) - 1, run.bit_length())
