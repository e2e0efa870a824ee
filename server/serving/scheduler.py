"""Who is served next: completions before background work, and equals in turns.

The worker asks again before every step, so a completion that arrives takes over at the next cycle border and
the background answer goes on afterwards, its state untouched. Equals go in the order in which they came, and one that
takes longer than a turn lets the others have theirs.

A request that has begun keeps its sequence in memory until it ends. So each priority has room for so many bytes of
them, and one sequence at least: long background work can't keep a completion from beginning.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from server.request import FinishReason, GenerationRequest, Priority
from server.serving.generation import Generation

if TYPE_CHECKING:
    from server.serving.answer import Answer


TURN_S = 0.5
"""Seconds. About what a completion takes: two of them don't slow each other down, and a long prompt holds up an equal
no longer."""
MOST_REQUESTS = 256
"""Of one priority, running and waiting."""
MOST_TOKENS = 2**21
"""Of the prompts of one priority together: about 75 MB. One prompt is taken however long it is."""
RANKS: tuple[Priority, ...] = get_args(Priority)


class EngineBusy(Exception):  # noqa: N818 - it says what is wrong
    """So much waits that one more request is not taken; the text says how much, and what to do."""


@dataclass(eq=False)
class Job:
    """A request in the queue. answer: None until its first step. Times are those of the scheduler's clock.

    nbytes: what its sequence takes at most. served: seconds that it has had; one that comes later begins with as many
    as the equal that has had least, in whole turns.
    """

    request: GenerationRequest
    generation: Generation
    number: int
    submitted: float
    nbytes: int = 0
    served: float = 0.0
    answer: Answer | None = None
    started: bool = False
    cancelled: bool = False

    @property
    def rank(self) -> int:
        return RANKS.index(self.request.priority)

    @property
    def turns(self) -> int:
        return int(self.served / TURN_S)

    def ending(self, now: float) -> FinishReason | None:
        """Why it should end now, if it should."""
        if self.cancelled:
            return "cancelled"
        timeout = self.request.timeout_ms
        return "timeout" if timeout is not None and now - self.submitted >= timeout / 1000 else None


class Scheduler:
    """The queue between the threads that ask and the one that works."""

    def __init__(self, room: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> None:
        """room: bytes that the sequences of one priority may take together, if there is more than one."""
        self._room = room
        self._clock = clock
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False
        self._working: tuple[Job, float] | None = None

    def submit(self, request: GenerationRequest, nbytes: int = 0) -> Job:
        """Add a request. nbytes: what its sequence takes at most. Raises EngineBusy; RuntimeError after ``close``."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed and takes no requests")
            equals = [job for job in self._jobs if job.request.priority == request.priority]
            tokens = sum(len(job.request.ids) for job in equals)
            if len(equals) >= MOST_REQUESTS or (equals and tokens + len(request.ids) > MOST_TOKENS):
                raise EngineBusy(
                    f"{len(equals)} requests ({request.priority}) with {tokens} tokens run or wait, and the engine "
                    f"takes {MOST_REQUESTS} with {MOST_TOKENS} tokens at most: ask again when some have ended"
                )
            self._count += 1
            generation = Generation(lambda: self.cancel(job))
            job = Job(request, generation, self._count, self._clock(), nbytes, _least(equals))
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
                self._working = None
                self._changed.wait()
            if self._closed:
                return None
            now = self._clock()
            if self._working is not None:
                job, since = self._working
                job.served += now - since
            ending = [job for job in self._jobs if job.ending(now) is not None]
            job = min(ending or self._ready(), key=lambda job: (job.rank, job.turns, job.number))
            if not job.started:
                job.started = True
                equals = [j for j in self._jobs if j.started and j is not job and j.rank == job.rank]
                job.served = max(job.served, _least(equals))
            self._working = job, now
            return job

    def _ready(self) -> list[Job]:
        """Those that have begun, and of each priority the one that waits longest, if there is room for its sequence."""
        ready = [job for job in self._jobs if job.started]
        for rank in range(len(RANKS)):
            begun = [job.nbytes for job in ready if job.rank == rank]
            waiting = next((job for job in self._jobs if job.rank == rank and not job.started), None)
            if waiting is not None and (not begun or sum(begun) + waiting.nbytes <= self._room):
                ready.append(waiting)
        return ready

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


def _least(jobs: list[Job]) -> float:
    """The time that the one has had that has had least, in whole turns."""
    return TURN_S * min((job.turns for job in jobs), default=0)
