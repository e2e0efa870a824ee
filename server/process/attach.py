"""Finds this user's engine, or starts it, and waits until it is ready: the client's half of the lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from server import __version__
from server.models_known import EMBEDDED, ModelNotFound, asked_model, find_model, model_stamp
from server.process.exits import EXIT_ALREADY_RUNNING, EXIT_STOPPED
from server.process.lock import lock_holder
from server.process.places import RuntimeDirectoryError, find_places
from server.process.probe import NoAnswer, ask_health
from server.process.spawn import StartedEngine
from server.wire import Health

LOAD_PATIENCE_S = 600.0
"""For a model that loads, as long as its engine says so."""
SILENCE_PATIENCE_S = 60.0
"""For an engine that is there but says nothing: importing torch from a cold disk can take this long."""
BUSY_PATIENCE_S = 60.0
"""For an engine that must go but still has requests to finish."""
MOST_STARTS = 5
POLL_S = 0.05


class EngineUnavailable(Exception):  # noqa: N818
    """There is no engine to talk to: it can't be started, died or does not answer. str() is one line."""


class Attachment:
    """One client's way to a ready engine.

    Each replaces a running engine at most once, so two clients that disagree don't take turns forever.
    """

    def __init__(
        self,
        *,
        start: bool,
        model: str | None,
        any_version: bool,
        last: Health | None = None,
        on_replace: Callable[[str], None] = lambda line: None,
    ) -> None:
        """model: as given by the user, or None. any_version: don't replace an engine for its version. last: the engine
        that was there before; who names no model gets its model again. on_replace: told, in one line, that a running
        engine has to go, and why.

        Without ``start`` nothing is started or replaced. Raises EngineUnavailable for a model that isn't there.
        """
        try:
            self._model = asked_model(model)
            self._path = str(find_model(self._model)) if self._model else None
            self.places = find_places()
        except (ModelNotFound, RuntimeDirectoryError) as error:
            raise EngineUnavailable(str(error)) from error
        self._on_replace = on_replace
        self._may_start = start
        self._any_version = any_version
        self._started: StartedEngine | None = None
        self._starts = 0
        self._replaced_at: float | None = None
        if last is not None:
            self._keep_model(last)

    async def wait_until_ready(self, http: httpx.AsyncClient) -> Health:
        """The health of an engine that takes requests. Raises EngineUnavailable."""
        begin = heard = time.monotonic()
        while True:
            with contextlib.suppress(NoAnswer):
                health = await ask_health(http)
                if health is None:
                    self._start_engine()
                else:
                    heard = time.monotonic()
                    if await self._will_do(http, health):
                        return health
            now = time.monotonic()
            if now - begin > LOAD_PATIENCE_S or now - heard > SILENCE_PATIENCE_S:
                holder = lock_holder(self.places.lock)
                raise EngineUnavailable(
                    f"the engine process {holder} does not answer; end it with `draftline stop` and try again"
                    if holder
                    else "the engine did not start in time; see " + str(self.places.log)
                )
            await asyncio.sleep(POLL_S)

    async def _will_do(self, http: httpx.AsyncClient, health: Health) -> bool:
        """Whether this engine takes requests now and is the right one; a wrong one is asked to go."""
        if health.status == "stopping":
            if self._replaced_at is not None and time.monotonic() - self._replaced_at > BUSY_PATIENCE_S:
                raise EngineUnavailable(
                    f"the engine process {health.pid} must be replaced but is still busy; try again later"
                )
            return False
        fault = self._fault(health)
        if fault is None:
            return health.status == "ready"
        if not self._may_start:
            raise EngineUnavailable(f"the running engine can't be used: {fault}; end it with `draftline stop`")
        if self._replaced_at is not None:
            raise EngineUnavailable(
                f"the running engine can't be used: {fault}; another command started it: wait until that has ended, "
                f"or end the engine with `draftline stop`, and try again"
            )
        self._keep_model(health)
        self._check_model_file()
        self._replaced_at = time.monotonic()
        self._on_replace(f"the running engine (process {health.pid}) is replaced: {fault}")
        with contextlib.suppress(httpx.TransportError):
            await http.post("/draftline/v1/stop", json={"when": "idle"}, timeout=5.0)
        return False

    def _keep_model(self, before: Health) -> None:
        """Who names no model goes on with the one that ran; the embedded one is that of this installation."""
        if self._path is None:
            self._model = EMBEDDED if before.model_id == EMBEDDED else before.model

    def _check_model_file(self) -> None:
        """A file that can't be loaded must not cost the user the engine that works. Raises EngineUnavailable."""
        from server.gguf.errors import ModelFileError
        from server.gguf.header import map_file

        try:
            map_file(find_model(self._model))
        except (ModelFileError, ModelNotFound) as error:
            raise EngineUnavailable(str(error)) from error

    def _fault(self, health: Health) -> str | None:
        """Why a running engine must be replaced, None when it will do."""
        if self._path is not None and health.model != self._path:
            return f"it holds the model {health.model}, and {self._path} is asked for"
        mine = self._started is not None and self._started.pid == health.pid
        if mine or not self._may_start:
            return None
        if health.version != __version__ and not self._any_version:
            return f"it is of version {health.version}, and this is version {__version__}"
        with contextlib.suppress(OSError):
            if model_stamp(Path(health.model)) != health.model_stamp:
                return f"the file {health.model} has changed since it was loaded"
        return None

    def _start_engine(self) -> None:
        """Nobody listens: start an engine, or see what became of the one that was started."""
        if self._started is not None:
            code = self._started.exit_code
            if code is None:
                return
            if code not in (EXIT_ALREADY_RUNNING, EXIT_STOPPED) or self._starts >= MOST_STARTS:
                raise EngineUnavailable(self._started.last_words())
            # Another client's engine was first, or somebody stopped ours: look again.
            self._started = None
        if not self._may_start:
            raise EngineUnavailable("no engine is running; `draftline serve` starts one")
        self._starts += 1
        try:
            self._started = StartedEngine(self.places, self._model)
        except OSError as error:
            raise EngineUnavailable(f"the engine can't be started: {error}") from error
