"""One lane a document: at most one completion runs and one waits; a newer request replaces both.

A replaced request is answered at once, while its job is still being cancelled; the next job starts when the old one
is really gone. Requests for the same place in the same version (ghost text and popup) share one job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Superseded(Exception):  # noqa: N818
    """A newer request, or a change of the document, took this request's place."""


class _Job(Generic[T]):
    def __init__(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> None:
        self.key = key
        self.work = work
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.requests = 0
        self._cancelled = False

    def start(self, done: Callable[[], None]) -> None:
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: done())

    async def _run(self) -> None:
        try:
            value = await self.work()
        except asyncio.CancelledError:
            self.give_up()
            raise
        except Exception as error:
            if not self.result.done():
                self.result.set_exception(error)
        else:
            if not self.result.done():
                self.result.set_result(value)

    def give_up(self) -> None:
        if not self.result.done():
            self.result.set_exception(Superseded())
            self.result.exception()  # nobody may be left to read it
        if self.task is not None and not self._cancelled:
            # Once only: a second time would break off the closing of its connection.
            self._cancelled = True
            self.task.cancel()


class Lane(Generic[T]):
    def __init__(self) -> None:
        self._running: _Job[T] | None = None
        self._waiting: _Job[T] | None = None

    @property
    def idle(self) -> bool:
        return self._running is None

    async def request(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, or of the job that does the same already. Raises Superseded when replaced.

        Cancelling the last request of a job cancels the job.
        """
        job = self._find(key)
        if job is None:
            self.supersede()
            job = _Job(key, work)
            if self._running is None:
                self._start(job)
            else:
                self._waiting = job
        job.requests += 1
        try:
            return await asyncio.shield(job.result)
        except asyncio.CancelledError:
            job.requests -= 1
            if job.requests == 0:
                self._drop(job)
            raise

    def supersede(self) -> None:
        """Answer what runs and what waits with Superseded."""
        for job in (self._running, self._waiting):
            if job is not None:
                self._drop(job)

    def _find(self, key: Hashable) -> _Job[T] | None:
        for job in (self._waiting, self._running):
            if job is not None and job.key == key and not job.result.done():
                return job
        return None

    def _drop(self, job: _Job[T]) -> None:
        if job is self._waiting:
            self._waiting = None
        job.give_up()

    def _start(self, job: _Job[T]) -> None:
        self._running = job
        job.start(self._next)

    def _next(self) -> None:
        self._running = None
        if (job := self._waiting) is not None:
            self._waiting = None
            self._start(job)
