"""How everything but the engine talks to the engine process: one client, over the Unix socket.

Free of torch. ``EngineClient.connect()`` finds the engine of this user or starts it; ``complete()`` streams
the answer; leaving the stream early cancels the generation.

    async with await EngineClient.connect() as client:
        async with contextlib.aclosing(client.complete(request)) as events:
            async for event in events:
                ...
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx

from server.models_known import EMBEDDED
from server.process.attach import Attachment, Claim, EngineUnavailable
from server.process.last_model import name_of, read_last
from server.process.places import Places
from server.process.probe import NoAnswer, ask_health, open_http
from server.wire import (
    ENGINE_PID_HEADER,
    CompletionEvent,
    CompletionFinished,
    CompletionProgress,
    CompletionRequest,
    CompletionText,
    Health,
)

__all__ = ["EMBEDDED", "Claim", "EngineClient", "EngineError", "EngineUnavailable"]

SILENCE_S = 30.0
"""A stream that shows no sign of life this long is given up: the engine sends one every few seconds."""

LOST = "the engine was lost and is being started again"


class EngineError(Exception):
    """The engine refused a request. str() is one line.

    status: the HTTP status. code: a stable name for programs, such as ``context_overflow``.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class EngineClient:
    """A connection to the engine process. Safe for many requests at once on one event loop.

    on_change: called with a line when the engine is found gone and another one is looked for, then with the health of
    that one or with the reason why there is none. May be replaced at any time.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        health: Health,
        places: Places,
        attach: Callable[[], Attachment],
    ) -> None:
        """Use ``connect``."""
        self._http = http
        self._health = health
        self._places = places
        self._attach = attach
        self._search: asyncio.Task[None] | None = None
        self.on_change: Callable[[Health | EngineUnavailable | str], None] = lambda found: None

    @classmethod
    async def connect(
        cls,
        *,
        start: bool = True,
        model: str | None = None,
        tell: Callable[[str], None] = lambda line: None,
        claim: Claim | None = None,
    ) -> EngineClient:
        """Attach to this user's engine once it is ready; start it when there is none and ``start`` is true.

        model: a path or a known name; an engine that holds another model, or is of another version, is
        replaced as soon as it is idle. None takes the one in the environment variable DRAFTLINE_MODEL, else the
        model that runs or ran last, else the embedded one. tell: as `Attachment` has it. claim: of a client that
        connects again and again, the same each time. Raises EngineUnavailable, with the engine's own line when it
        failed to start.
        """
        claim = claim or Claim()
        attach = partial(Attachment, start=start, model=model, claim=claim, tell=tell)
        attachment = attach()
        http = open_http(attachment.places.socket)
        try:
            health = await attachment.wait_until_ready(http)
        except BaseException:
            await http.aclose()
            raise
        return cls(http, health, attachment.places, attach)

    @property
    def engine_pid(self) -> int:
        """Process id of the engine last heard of."""
        return self._health.pid

    @property
    def model_id(self) -> str:
        """The model of the engine last heard of, by its name in the API."""
        return self._health.model_id

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent]:
        """Stream one answer: CompletionProgress if asked for, any number of CompletionText, then exactly one
        CompletionFinished.

        Closing the generator (or cancelling the task that reads it) cancels the generation in the engine.
        Raises EngineUnavailable at once when the engine dies after it took the request (the next call starts or
        finds a new one), and EngineError for a refused request (``context_overflow``, ``bad_request``). A
        request that the engine had not taken yet is sent again to the next engine.
        """
        body = json.dumps(request.to_json()).encode()
        for last_try in (False, True):
            if self._http.is_closed:
                raise EngineUnavailable("the connection to the engine was closed")
            engine = self._health
            taken = False
            try:
                async with self._http.stream(
                    "POST", "/draftline/v1/complete", content=body, timeout=httpx.Timeout(SILENCE_S)
                ) as response:
                    if response.status_code != 200:
                        refusal = _refusal(response.status_code, await response.aread())
                        if refusal.status != 503 or last_try:
                            raise refusal
                    elif last_try or response.headers.get(ENGINE_PID_HEADER, str(engine.pid)) == str(engine.pid):
                        taken = True
                        finished = False
                        async for event in _events(response):
                            finished = isinstance(event, CompletionFinished)
                            yield event
                        if not finished:
                            raise _died(engine)
                        return
                    # else: the engine was replaced behind our back, and must be looked at first.
            except httpx.TimeoutException as error:
                raise EngineUnavailable(
                    f"the engine process {engine.pid} does not answer; end it with `draftline stop`"
                ) from error
            except httpx.TransportError as error:
                if taken or last_try:
                    raise _died(engine) from error
            await self._reconnect(engine)

    async def health(self) -> Health:
        """What the engine says about itself: context length, measured prefill rate, model, state.

        Raises EngineUnavailable when it is gone or does not answer; starts nothing.
        """
        try:
            health = await ask_health(self._http)
        except NoAnswer as error:
            raise EngineUnavailable(f"the engine process {self._health.pid} does not answer") from error
        if health is None:
            raise _died(self._health)
        self._health = health
        return health

    async def aclose(self) -> None:
        """Drop the connections; the engine goes on."""
        if self._search is not None:
            self._search.cancel()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _reconnect(self, lost: Health) -> None:
        """Attach again after ``lost`` went away; requests that lost it together wait for one new engine.

        The search goes on when a request gives up waiting: the next one needs the engine too.
        """
        if self._health is not lost:
            return
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._find_another())
        search = self._search
        try:
            await asyncio.shield(search)
        except asyncio.CancelledError:
            if search.cancelled():
                raise EngineUnavailable("the connection to the engine was closed") from None
            # Nobody may be left to hear of its failure.
            search.add_done_callback(lambda _: search.cancelled() or search.exception())
            raise

    async def _find_another(self) -> None:
        self.on_change(self._why_gone())
        try:
            self._health = await self._attach().wait_until_ready(self._http)
        except EngineUnavailable as error:
            self.on_change(error)
            raise
        self.on_change(self._health)

    def _why_gone(self) -> str:
        next_one = read_last(self._places).next
        if next_one is None or next_one == name_of(self._health):
            return LOST
        return f"the engine was replaced because a client asked for the model {next_one}"


async def _events(response: httpx.Response) -> AsyncGenerator[CompletionEvent]:
    rest = b""
    async for chunk in response.aiter_raw():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield _event(json.loads(line))


def _event(value: dict[str, Any]) -> CompletionEvent:
    if "finished" in value:
        return CompletionFinished.from_json(value["finished"])
    if "prefill" in value:
        return CompletionProgress.from_json(value["prefill"])
    return CompletionText(value["text"])


def _refusal(status: int, body: bytes) -> EngineError:
    try:
        error = json.loads(body)["error"]
        return EngineError(error["message"], status=status, code=error["code"])
    except (ValueError, KeyError, TypeError):
        return EngineError(f"the engine answered with HTTP status {status}", status=status, code="unknown")


def _died(engine: Health) -> EngineUnavailable:
    return EngineUnavailable(f"the engine process {engine.pid} ended; the next request starts a new one")
