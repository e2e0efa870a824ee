"""What the HTTP API knows of the engine it stands in front of: loading, ready or stopping, and who uses it now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from server import __version__
from server.api.errors import ApiError
from server.models_known import model_id, model_stamp
from server.wire import Health

if TYPE_CHECKING:
    from server.engine import Engine


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class EngineHost:
    """The engine's state as clients see it. Everything but ``Engine`` itself lives on the event loop's thread."""

    def __init__(self, model: Path, *, on_stop: Callable[[], None]) -> None:
        """model: resolved path of the file being loaded. on_stop: called once, when the process should end."""
        self.model = model
        self.model_id = model_id(model)
        self.model_stamp = model_stamp(model)
        self.status: Literal["loading", "ready", "stopping"] = "loading"
        self.why = ""
        """Why the process ends, for its own terminal and log."""
        self.on_purpose = False
        """Whether it ends because nobody wants its model any more."""
        self.clients: Callable[[], int] = lambda: 0
        self._engine: Engine | None = None
        self._on_stop = on_stop
        self._running: set[Cancellable] = set()
        self._started = time.monotonic()
        self._last_used = self._started

    def ready(self, engine: Engine) -> None:
        self._engine = engine
        self._last_used = time.monotonic()
        if self.status == "loading":
            self.status = "ready"

    def engine(self) -> Engine:
        """The engine, for one new request. Raises ApiError 503 while it loads or stops."""
        if self.status == "stopping":
            raise ApiError(503, "stopping", "the engine is stopping; connect again to start a new one")
        if self._engine is None:
            raise ApiError(503, "loading", f"the model {self.model_id} is still loading")
        return self._engine

    def begin(self, request: Cancellable) -> None:
        self._running.add(request)

    def end(self, request: Cancellable) -> None:
        self._running.discard(request)
        self._last_used = time.monotonic()
        if self.status == "stopping" and not self._running:
            self._on_stop()

    def touch(self) -> None:
        """Somebody is still there: the idle time starts again."""
        self._last_used = time.monotonic()

    @property
    def active(self) -> int:
        """Requests running or waiting."""
        return len(self._running)

    @property
    def idle_s(self) -> float:
        """Seconds since the engine was last used; 0 while it loads or works."""
        return 0.0 if self._running or self.status == "loading" else time.monotonic() - self._last_used

    def stop(self, why: str = "", *, when_idle: bool, on_purpose: bool = False) -> None:
        """Take nothing new; end at once (what runs is cancelled), or once what runs has finished."""
        self.status = "stopping"
        self.why = self.why or why
        self.on_purpose = self.on_purpose or on_purpose
        if when_idle and self._running:
            return
        for request in list(self._running):
            request.cancel()
        self._on_stop()

    def health(self) -> Health:
        engine = self._engine
        return Health(
            status=self.status,
            version=__version__,
            pid=os.getpid(),
            model=str(self.model),
            model_id=self.model_id,
            model_stamp=self.model_stamp,
            active=self.active,
            clients=self.clients(),
            context_length=engine.context_length if engine else 0,
            prefill_tokens_per_second=engine.prefill_rate if engine else 0.0,
            uptime_s=time.monotonic() - self._started,
            executor=engine.executor if engine else "",
            chat=engine is not None and engine.chat is not None,
        )
