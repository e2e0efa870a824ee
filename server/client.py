"""How everything but the engine talks to the engine process: one client, over the Unix socket.

Free of torch. ``EngineClient.connect()`` finds the engine of this user or starts it; ``complete()`` streams the
answer; leaving the stream early cancels the generation.

    client = await EngineClient.connect()
    async with contextlib.aclosing(client.complete(request)) as events:
        async for event in events:
            ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from server.wire import CompletionEvent, CompletionFinished, CompletionRequest, Health


class EngineUnavailable(Exception):
    """There is no engine to talk to: it can't be started, died or doesn't answer. str() is one line that says why."""


class EngineError(Exception):
    """The engine answered with an error. str() is one line.

    status: the HTTP status. code: a stable name for programs, such as ``context_overflow``.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class EngineClient:
    """A connection to the engine process. Safe for many requests at once on one event loop."""

    @classmethod
    async def connect(cls, *, start: bool = True, model: str | None = None) -> EngineClient:
        """Attach to this user's engine once it is ready; start it when there is none and ``start`` is true.

        model: a path or a known name; an engine that holds another model, or is of another version, is replaced as
        soon as it is idle. None takes the model that runs, or the default one. Raises EngineUnavailable, with the
        engine's own line when it failed to start.
        """
        raise NotImplementedError

    def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent]:
        """Stream one answer: any number of CompletionText, then exactly one CompletionFinished.

        Closing the generator (or cancelling the task that reads it) cancels the generation in the engine. Raises
        EngineUnavailable at once when the engine dies meanwhile (the next call starts or finds a new one), and
        EngineError for a refused request (``context_overflow``, ``bad_request``).
        """
        raise NotImplementedError

    async def complete_text(self, request: CompletionRequest) -> tuple[str, CompletionFinished]:
        """The whole answer at once."""
        raise NotImplementedError

    async def health(self) -> Health:
        """What the engine says about itself: context length, measured prefill rate, model, state."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End the engine process and wait until it is gone."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Drop the connections; the engine goes on."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
