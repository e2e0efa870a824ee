"""Faults that tests plant to see that they are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.cache.prefix import CachedSequence
from server.engine import Engine
from server.model.state import Checkpoint, Rows, SequenceState


def refused_drafts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept has seen drafts that were refused."""
    give_back = engine._cache.give_back

    def too_far(sequence: CachedSequence) -> None:
        length = sequence.state.length
        engine.model.decode([1, 2], sequence.state)
        del sequence.state.tokens[length:]
        give_back(sequence)

    monkeypatch.setattr(engine._cache, "give_back", too_far)


def wrong_rows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept has keys for values."""
    rows = SequenceState.rows
    monkeypatch.setattr(
        SequenceState, "rows", lambda self, start, end: Rows(start, rows(self, start, end).stored.flip(1))
    )


def shared_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request writes into what is kept."""
    checkpoint = SequenceState.checkpoint

    def view(self: SequenceState, length: int | None = None) -> Checkpoint:
        kept = checkpoint(self, length)
        return replace(kept, memory=self.memory) if kept.length == self.length else kept

    monkeypatch.setattr(SequenceState, "checkpoint", view)
