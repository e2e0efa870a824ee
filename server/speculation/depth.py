"""How many rows to draft in a cycle: as many as pay, judged by what cycles cost and yielded so far.

Whether to draft at all is decided by realised yield: tokens per second of the cycles that drafted against the
rate without drafts, 1 / t₀. How far is decided draft by draft. One more row costs s seconds, in which the
engine makes r·s tokens at its present rate r, and it yields a token with the probability that all drafts so
far and the next one are right; so drafting goes on while

    P(drafts 1..j right) · P(draft j + 1 right | those) ≥ r · s

(the stopping rule that maximises tokens per second: subtract r times the cost and the ratio becomes a sum).
The drafter's own probabilities tell how likely the drafts at hand are right, corrected by how often drafts of
that probability were. Everything is an exponential average, so it follows the machine and the text. There is
no clock and no chance in here: equal observations give equal decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_DEPTH = 7
"""Rows drafted at most: with the last token, 8 rows are verified."""

_TOUR = (3, 0, 1, 3, 0, 1)
"""Depths of the first cycles, each twice: the first run of a row count also sets up its kernels."""
_LOOK_DEEPER = 16
"""Every so many drafting cycles the next draft is taken to be right, to try deeper rows again."""
_LOOK_OFF = 96
"""Every so many cycles in which drafting pays one runs without."""
_LOOK_ON = 24
"""Every so many cycles in which drafting doesn't pay one drafts."""
_BINS = 8


class _Average:
    """An exponential average that starts as a plain one."""

    def __init__(self, rate: float, value: float | None = None) -> None:
        self._rate = rate
        self._count = 0
        self.value = value

    def add(self, x: float) -> None:
        self._count += 1
        if self.value is None:
            self.value = x
        else:
            self.value += max(self._rate, 1 / (self._count + 1)) * (x - self.value)


class _Seconds(_Average):
    """Of durations: the slower of the first two is dropped, and an outlier counts for twice the average."""

    def add(self, x: float) -> None:
        if self.value is not None and self._count == 1:
            self._count += 1
            self.value = min(self.value, x)
        else:
            super().add(x if self.value is None else min(x, 2 * self.value))


class _CycleTime:
    """Seconds of a drafting cycle of depth d: level · (1 + share · d).

    The level follows the machine's mood within a few cycles and leaves the share, which belongs to model and
    machine, as it was. The share moves with cycles deeper or shallower than usual, and without news it fades to a
    guess: were it not so, a few slow deep cycles could forbid deep cycles, and their own correction, for ever.
    """

    GUESS, FADE = 0.1, 0.002

    def __init__(self) -> None:
        self.level = 0.0
        self.share = self.GUESS
        self._depth = _Average(0.05)
        self._count = 0

    def add(self, depth: int, seconds: float) -> None:
        seconds = max(seconds, 1e-9)
        self._count += 1
        self._depth.add(depth)
        shape = 1 + self.share * depth
        if self._count <= 2:  # the slower of the first two set up the kernels
            self.level = min(self.level or seconds, seconds / shape)
            return
        error = max(-0.5, min(0.5, seconds / (self.level * shape) - 1))
        aside = depth - (self._depth.value or 0.0)
        self.level *= 1 + 0.1 * error
        self.share += 0.1 * error * aside / (1 + aside**2) + self.FADE * (self.GUESS - self.share)
        self.share = max(0.0, self.share)


class DepthController:
    """Decides for each cycle how many rows to draft, 0 to ``max_depth``. One per engine, fed by every cycle."""

    def __init__(self, max_depth: int = MAX_DEPTH) -> None:
        self.max_depth = max_depth
        self.cycles = 0
        self._drafting_cycles = 0
        self._alone = _Seconds(0.2)
        self._drafting = _CycleTime()
        self._right = [_Average(0.05, 0.6) for _ in range(max_depth)]
        self._bins = [_Average(0.05, (b + 0.5) / _BINS) for b in range(_BINS)]
        self._yield_tokens = _Average(0.04)
        self._yield_seconds = _Seconds(0.04)

    def another(self, confidences: Sequence[float | None]) -> bool:
        """Whether to draft one more row after those with these probabilities (None: unknown)."""
        drafted = len(confidences)
        if drafted >= self.max_depth:
            return False
        if self.cycles < len(_TOUR):
            return drafted < _TOUR[self.cycles]
        if drafted == 0:
            return self.cycles % _LOOK_OFF != 0 if self.pays else self.cycles % _LOOK_ON == 0
        reach = 1.0
        for position, confidence in enumerate(confidences):
            reach *= self._probability(position, confidence)
        looks = self._drafting_cycles % _LOOK_DEEPER == 0
        following = 1.0 if looks else self._right[drafted].value or 0.0
        return reach * following >= self.rate * self.row_seconds

    def observe(self, confidences: Sequence[float | None], accepted: int, seconds: float) -> None:
        """A cycle drafted rows with these probabilities; ``accepted`` of them were right."""
        self.cycles += 1
        drafted = len(confidences)
        if not drafted:
            self._alone.add(seconds)
            return
        self._drafting.add(drafted, seconds)
        self._drafting_cycles += 1
        self._yield_tokens.add(accepted + 1.0)
        self._yield_seconds.add(seconds)
        for position in range(min(drafted, accepted + 1)):
            right = 1.0 if position < accepted else 0.0
            self._right[position].add(right)
            confidence = confidences[position]
            if confidence is not None:
                self._bins[_bin(confidence)].add(right)

    @property
    def pays(self) -> bool:
        """Whether cycles that drafted made more tokens per second than cycles that didn't."""
        alone = self._alone.value
        tokens, seconds = self._yield_tokens.value, self._yield_seconds.value
        return alone is None or tokens is None or seconds is None or tokens * alone >= seconds

    @property
    def rate(self) -> float:
        """Tokens per second at present; 0 before anything was measured."""
        alone = self._alone.value
        tokens, seconds = self._yield_tokens.value, self._yield_seconds.value
        rates = [0.0]
        if alone:
            rates.append(1 / alone)
        if tokens and seconds:
            rates.append(tokens / seconds)
        return max(rates)

    @property
    def row_seconds(self) -> float:
        """What one more drafted row adds to a cycle."""
        return self._drafting.level * self._drafting.share

    def _probability(self, position: int, confidence: float | None) -> float:
        average = self._right[position] if confidence is None else self._bins[_bin(confidence)]
        return average.value or 0.0


def _bin(confidence: float) -> int:
    return min(_BINS - 1, max(0, int(confidence * _BINS)))
