"""How a prompt is computed, and where its states are kept: functions of its length and its borders alone.

A prompt begins in chunks (prefill) and ends in steps (decode), as the few tokens of a keystroke must be computed.
Chunks are cut at multiples of the model's own chunk only, where a cut changes no bit, and a step's bits don't depend on
the steps it runs with. So the bits of a state follow from the tokens and from where the steps begin, and a prompt that
goes on from a kept state whose steps began there computes what it would have computed from its first token on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from server.model.delta_net import CHUNK


@dataclass(frozen=True)
class Cutting:
    """What of it depends on the device."""

    call: int
    """Tokens a prefill call takes at most (a multiple of CHUNK): how long a cancelled request can go on."""
    spacing: int
    """A state is kept at every multiple of this many tokens (a multiple of `call`)."""
    steps: bool
    """Whether a prompt ends in steps."""


ON_CPU = Cutting(call=256, spacing=512, steps=True)
ON_GPU = Cutting(call=2048, spacing=2048, steps=False)
"""A step of few rows costs there what a chunk of 64 does. See docs/decisions/chunks-then-steps.md."""
NEAR = 16
"""Where steps go on after a change near the cursor: a state is kept at the last multiple of this before it."""
ROOM = 4
"""Typing changes the last few tokens before the cursor (a word grows into another token), not only what follows."""


def steps_begin(length: int, checkpoints: Iterable[int], cutting: Cutting = ON_CPU) -> int:
    """How many of a prompt's ``length`` tokens are computed in chunks: all, or a multiple of CHUNK less than it.

    The steps begin a little before the cursor, which is the last of the asked-for ``checkpoints`` if so little follows
    it that it may be one, and else the end.
    """
    if not cutting.steps:
        return length
    return max(0, _cursor(length, checkpoints) - ROOM) // CHUNK * CHUNK


def kept_states(length: int, checkpoints: Iterable[int], cutting: Cutting = ON_CPU) -> frozenset[int]:
    """The token counts at which the state is kept.

    They are the end, where the steps begin and a little before the cursor; the asked-for ``checkpoints``, which move
    to the multiple of CHUNK before them where tokens are computed in chunks and steps follow; and multiples of the
    spacing there.
    """
    if length <= 0:
        return frozenset()
    asked = {c for c in checkpoints if 0 < c < length}
    begin = steps_begin(length, asked, cutting)
    near = max(0, _cursor(length, asked) - ROOM) // NEAR * NEAR
    moved = {c // CHUNK * CHUNK if cutting.steps and c <= begin else c for c in asked}
    return frozenset({length, begin, near, *moved, *range(cutting.spacing, begin, cutting.spacing)} - {0})


def prefill_cuts(length: int, checkpoints: Iterable[int], cutting: Cutting = ON_CPU) -> list[int]:
    """The token counts, ascending, at which prefill calls end; the last is where the steps begin. None if that is 0."""
    asked = tuple(checkpoints)
    begin = steps_begin(length, asked, cutting)
    kept = {k for k in kept_states(length, asked, cutting) if k <= begin}
    return sorted({*range(cutting.call, begin, cutting.call), *kept})


def _cursor(length: int, checkpoints: Iterable[int]) -> int:
    last = max((c for c in checkpoints if 0 < c < length), default=0)
    return last if length - last < CHUNK else length
