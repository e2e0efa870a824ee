"""Answers that end when the client goes away: a streamed one, and one that is awaited as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S = 5.0
"""A silent stream gives a sign of life this often, so that a client can tell a long prefill from a dead engine."""

_Result = TypeVar("_Result")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(
    request: Request, work: Callable[[], Awaitable[_Result]], cancel: Callable[[], None]
) -> _Result | None:
    """The result of ``work``, or None after calling ``cancel`` when the client closes the connection before."""
    result: _Result | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await _gone(request.receive)
            cancel()
            group.cancel_scope.cancel()

        group.start_soon(watch)
        result = await work()
        group.cancel_scope.cancel()
    return result


class StreamedAnswer(Response):
    """Sends chunks as they come; ``cancel`` is called when the client leaves before the end, or the server stops."""

    def __init__(
        self, chunks: AsyncIterator[bytes], *, media_type: str, keep_alive: bytes, cancel: Callable[[], None]
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        self._chunks = chunks
        self._keep_alive = keep_alive
        self._cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    await _gone(receive)
                    group.cancel_scope.cancel()

                async def stay_alive() -> None:
                    while True:
                        await anyio.sleep(KEEP_ALIVE_S)
                        await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})

                # The headers go out first: they tell the client that the engine has taken the request.
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
                group.start_soon(watch)
                group.start_soon(stay_alive)
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                group.cancel_scope.cancel()
        finally:
            self._cancel()
