"""What a running request's sequence takes of the memory, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.model.state import SequenceState


def sequence_bytes(empty: SequenceState, tokens: int, *, aside: bool) -> int:
    """Bytes of a sequence of so many tokens at most. empty: a state that holds nothing.

    aside: whether what decodes it has buffers of its own, which are copied while another sequence has its turn.
    """
    caches = empty.attention if empty.mtp is None else [*empty.attention, empty.mtp]
    rows = sum(2 * cache.keys.shape[0] * cache.keys.shape[2] * cache.keys.element_size() for cache in caches)
    needed = empty.nbytes + rows * tokens * 3 // 2  # caches grow by half
    return 2 * needed if aside else needed
