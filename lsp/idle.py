"""Work for when nobody has asked for anything for a while; the next request takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PAUSE_S = 2.0
"""Without a request for so long, the user is reading, or away."""


class IdleWork:
    """At most one piece of work, which waits for its pause or is being done. pause_s: None for PAUSE_S."""

    def __init__(self, pause_s: float | None = None) -> None:
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None

    def later(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it after a pause, in place of what waited. Needs a running event loop."""
        self.stop()
        self._task = asyncio.create_task(self._wait(work))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _wait(self, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(PAUSE_S if self._pause_s is None else self._pause_s)
        await work()
