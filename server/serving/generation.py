"""The caller's end of one generation: its events, for threads and for event loops, and its cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from server.request import Event, FinishedEvent


class Generation:
    """Events of one request, in order; the last is a FinishedEvent, and there is exactly one.

    Iterate it once, in a thread or in an event loop. Leaving the iteration early cancels the generation.
    """

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self._on_cancel = on_cancel
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._wake: Callable[[], None] | None = None
        self._finished = False
        self._ended = False

    def cancel(self) -> None:
        """End it before the engine's next step, a cycle or a prefill chunk. Twice, or too late, is harmless."""
        self._on_cancel()

    def put(self, event: Event) -> None:
        """Add an event; called by the engine. Nothing follows a FinishedEvent."""
        with self._changed:
            if self._finished:
                return
            self._finished = isinstance(event, FinishedEvent)
            self._events.append(event)
            self._changed.notify_all()
            wake = self._wake
        if wake is not None:
            wake()

    def __iter__(self) -> Iterator[Event]:
        try:
            while not self._ended:
                with self._changed:
                    while not self._events:
                        self._changed.wait()
                    event = self._take()
                yield event
        finally:
            self._leave()

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.set)

        self._wake = wake
        try:
            while not self._ended:
                event = None
                with self._changed:
                    arrived.clear()
                    if self._events:
                        event = self._take()
                if event is None:
                    await arrived.wait()
                else:
                    yield event
        finally:
            self._wake = None
            self._leave()

    def _take(self) -> Event:
        event = self._events.popleft()
        self._ended = isinstance(event, FinishedEvent)
        return event

    def _leave(self) -> None:
        if not self._ended:
            self.cancel()
