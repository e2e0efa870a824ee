"""The language server's hold on the engine process: connected in the background, regained when it is lost.

Nothing here makes the editor wait: a request that comes while there is no engine is told so at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from lsp.completion import Engine
from server.client import EngineError, EngineUnavailable
from server.wire import Health

State = Literal["loading", "ready", "unavailable"]
"""loading: being started or looked for; unavailable: starting failed, tried again later."""

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0


class Connection(Engine, Protocol):
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
        self.message = "the engine is being started"

    def start(self) -> None:
        """Begin to connect; does nothing when begun already. Needs a running event loop."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected())

    def engine(self) -> Connection:
        """The connection. Raises EngineUnavailable, with the state's own line, while there is none."""
        if self._connection is None:
            raise EngineUnavailable(self.message)
        return self._connection

    def lost(self, connection: Connection, why: str) -> None:
        """Tell that a request found ``connection`` dead; a new one is made in the background."""
        if connection is self._connection:
            self._connection = None
            self.message = why
            self._lost.set()

    async def aclose(self) -> None:
        """Let go of the engine; it goes on without us."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._connection is not None:
            await self._connection.aclose()

    async def _keep_connected(self) -> None:
        pause = FIRST_PAUSE_S
        message = "loading the model"
        while True:
            self._say("loading", message)
            try:
                connection = await self._connect()
                health = await connection.health()
            except Exception as error:  # whatever it is, the editor must get its engine back later
                known = isinstance(error, EngineUnavailable | EngineError)
                self._say("unavailable", str(error) if known else f"starting the engine failed: {error!r}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            self._lost.clear()
            self._connection = connection
            self._say("ready", health.model_id, health)
            began = asyncio.get_running_loop().time()
            await self._lost.wait()
            await connection.aclose()
            message = f"{self.message}; starting it again"
            if asyncio.get_running_loop().time() - began > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _say(self, state: State, message: str, health: Health | None = None) -> None:
        self.message = message
        self._on_state(state, message, health)
