"""Which request a model works for, call by call: told by the first token of its sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from server.engine import Engine


@dataclass(frozen=True)
class Call:
    name: str
    owner: int
    rows: int


class Watched:
    """Notes the calls that advance a sequence. before: is told of each before it is made, on the worker's thread."""

    def __init__(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, before: Callable[[Call], None] = lambda call: None
    ) -> None:
        self.calls: list[Call] = []
        for name in ("prefill", "decode"):
            inner = getattr(engine.model, name)

            def noted(ids: Any, state: Any, name: str = name, inner: Callable[..., Any] = inner) -> Any:
                call = Call(name, (state.tokens or ids)[0], len(ids))
                self.calls.append(call)
                before(call)
                return inner(ids, state)

            monkeypatch.setattr(engine.model, name, noted)
