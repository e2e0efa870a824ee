"""Faults that tests plant to see that they are noticed."""

from __future__ import annotations

import pytest

from server.cache.prefix import CachedSequence
from server.engine import Engine


def refused_drafts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept has seen drafts that were refused."""
    give_back = engine._cache.give_back

    def too_far(sequence: CachedSequence) -> None:
        length = sequence.state.length
        engine.model.decode([1, 2], sequence.state)
        del sequence.state.tokens[length:]
        give_back(sequence)

    monkeypatch.setattr(engine._cache, "give_back", too_far)
