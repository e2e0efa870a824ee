"""Who is served next: completions before background work, first come first served among equals.

The worker asks again before every step, so a completion that arrives takes over at the next cycle border and
the background answer goes on afterwards, its state untouched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.request import FinishReason, GenerationRequest
from server.serving.generation import Generation

if TYPE_CHECKING:
    from server.serving.answer import Answer


@dataclass(eq=False)
class Job:
    """A request in the queue. answer: None until its first step. Times are those of the scheduler's clock."""

    request: GenerationRequest
    generation: Generation
    number: int
    submitted: float
    answer: Answer | None = None
    started: bool = False
    cancelled: bool = False

    def ending(self, now: float) -> FinishReason | None:
        """Why it should end now, if it should."""
        if self.cancelled:
            return "cancelled"
        timeout = self.request.timeout_ms
        return "timeout" if timeout is not None and now - self.submitted >= timeout / 1000 else None


class Scheduler:
    """The queue between the threads that ask and the one that works."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False

    def submit(self, request: GenerationRequest) -> Job:
        """Add a request. Raises RuntimeError after ``close``."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed and takes no requests")
            self._count += 1
            generation = Generation(lambda: self.cancel(job))
            job = Job(request, generation, self._count, self._clock())
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """Mark a job; the worker ends it before its next step."""
        with self._changed:
            job.cancelled = True

    def next(self) -> Job | None:
        """Wait for the job to work on now, one that should end before all others; None after ``close``."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            now = self._clock()
            job = min(self._jobs, key=lambda j: (j.ending(now) is None, _rank(j), j.number))
            job.started = True
            return job

    def remove(self, job: Job) -> None:
        """The job is finished."""
        with self._changed:
            self._jobs.remove(job)

    def close(self) -> None:
        """``next`` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def left(self) -> list[Job]:
        """Jobs that aren't finished."""
        with self._changed:
            return list(self._jobs)

    @property
    def load(self) -> tuple[int, int]:
        """How many jobs have started, and how many wait for their first step."""
        with self._changed:
            started = sum(job.started for job in self._jobs)
            return started, len(self._jobs) - started


def _rank(job: Job) -> int:
    return 0 if job.request.priority == "completion" else 1
