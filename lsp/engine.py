"""The language server's hold on the engine process: connected in the background, regained when it is lost.

Nothing here makes the editor wait: a request that comes while there is no engine is told so at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

from lsp.completion import Engine
from server.client import LOST, EngineError, EngineUnavailable
from server.wire import Health

State = Literal["loading", "ready", "unavailable"]
"""loading: being started or looked for; unavailable: starting failed, tried again later."""

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0


class Connection(Engine, Protocol):
    on_change: Callable[[Health | EngineUnavailable | str], None]

    async def aclose(self) -> None: ...


Connect = Callable[[], Awaitable[Connection]]
"""Attach to the engine, started when there is none; returns when it is ready. Raises EngineUnavailable."""


class EngineLink:
    """Keeps one connection. on_state is called with each change of state, a line for people and the engine's health."""

    def __init__(self, connect: Connect, on_state: Callable[[State, str, Health | None], None]) -> None:
        self._connect = connect
        self._on_state = on_state
        self._connection: Connection | None = None
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._model: str | None = None
        self.state: State = "loading"
        self.message = "the engine is being started"

    def start(self) -> None:
        """Begin to connect; does nothing when begun already. Needs a running event loop."""
        if self._keeper is None:
            asyncio.get_running_loop().set_exception_handler(_on_loop_error)
            self._keeper = asyncio.create_task(self._keep_connected())

    def engine(self) -> Connection:
        """The connection. Raises EngineUnavailable, with the state's own line, while there is none."""
        if self._connection is None:
            raise EngineUnavailable(self.message)
        return self._connection

    def lost(self, connection: Connection, why: str = LOST) -> None:
        """Tell that a request found ``connection`` dead; a new one is made in the background."""
        if connection is self._connection:
            self._connection = None
            self._say("loading", why)
            self._lost.set()

    def _changed(self, connection: Connection, found: Health | EngineUnavailable | str) -> None:
        """The connection looks for another engine by itself, or has found one, or has given up."""
        if connection is not self._connection:
            return
        if isinstance(found, str):
            self._say("loading", found)
        elif isinstance(found, EngineUnavailable):
            self.lost(connection, str(found))
        else:
            self._ready(found)

    def suspect(self, connection: Connection) -> None:
        """Tell that a request had no answer in time; an engine that says nothing at all counts as lost."""
        if connection is self._connection and self._probe is None:
            self._probe = asyncio.create_task(self._look(connection))

    async def _look(self, connection: Connection) -> None:
        try:
            await connection.health()
        except EngineUnavailable:
            self.lost(connection)
        finally:
            self._probe = None

    async def aclose(self) -> None:
        """Let go of the engine; it goes on without us."""
        tasks = [task for task in (self._keeper, self._probe) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            await self._connection.aclose()

    async def _keep_connected(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE_S
        self._say("loading", "the model is being loaded")
        while True:
            try:
                connection, health = await self._connect_and_ask()
            except Exception as error:  # whatever it is, the editor must get its engine back later
                known = isinstance(error, EngineUnavailable | EngineError)
                self._say("unavailable", str(error) if known else f"starting the engine failed: {error!r}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            self._lost.clear()
            self._connection = connection
            connection.on_change = functools.partial(self._changed, connection)
            self._ready(health)
            began = clock()
            await self._lost.wait()
            await connection.aclose()
            if clock() - began > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            else:
                # It dies as soon as it runs: don't start it as fast as it dies.
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _connect_and_ask(self) -> tuple[Connection, Health]:
        connection = await self._connect()
        try:
            return connection, await connection.health()
        except BaseException:
            # The next try makes another one, and the engine counts those that are open.
            await connection.aclose()
            raise

    def _ready(self, health: Health) -> None:
        before, self._model = self._model, health.model_id
        changed = before not in (None, health.model_id)
        self._say("ready", f"{health.model_id}, in place of {before}" if changed else health.model_id, health)

    def _say(self, state: State, message: str, health: Health | None = None) -> None:
        self.state, self.message = state, message
        self._on_state(state, message, health)


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # A read on the engine's socket that was cancelled just as its data came: the I/O library sets the result of a
    # future that is done. Nothing is wrong, and nobody should read about it on standard error.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)
