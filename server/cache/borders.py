"""Where a prefill is cut, and where the recurrent state is kept: functions of the prompt's length and borders
alone.

The recurrent state can't be truncated, so a prefix is reusable only up to a place where the state was kept.
The same prompt is cut at the same places whether it starts cold or from a kept state, so both compute the
same thing.
"""

from __future__ import annotations

from collections.abc import Iterable

CHUNK = 256
"""Tokens a prefill call takes at most: how long a cancelled request can go on."""
SPACING = 512
"""A checkpoint stands at every multiple of this many tokens (a multiple of CHUNK)."""
TAIL = 32
"""The checkpoint just before the cursor stands at a multiple of this many tokens."""
TAIL_ROOM = 4
"""Typing changes the last few tokens before the cursor (a word grows into another token), not only what follows."""


def prefill_borders(length: int, checkpoints: Iterable[int]) -> list[int]:
    """The token counts, ascending, at which the prefill of ``length`` tokens is cut; the last is the end."""
    if length <= 0:
        return []
    return sorted({*range(CHUNK, length, CHUNK), *checkpoint_borders(length, checkpoints)})


def checkpoint_borders(length: int, checkpoints: Iterable[int]) -> frozenset[int]:
    """Those of the borders at which the state is kept.

    They are the asked-for ``checkpoints``, multiples of SPACING, the end, and one a little before the last of
    the asked-for ones (or the end): the state the next keystroke starts from.
    """
    asked = {c for c in checkpoints if 0 < c < length}
    last = max(asked, default=length)
    tail = (last - TAIL_ROOM) // TAIL * TAIL
    spaced = range(SPACING, length, SPACING)
    return frozenset({*asked, *spaced, length, *([tail] if tail > 0 else [])})
