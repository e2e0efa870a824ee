"""Finds this user's engine, or starts it, and waits until it is ready: the client's half of the lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from server import __version__
from server.models_known import EMBEDDED, ModelNotFound, asked_model, find_model, model_stamp
from server.process.check import model_problem
from server.process.exits import EXIT_ALREADY_RUNNING, EXIT_STOPPED
from server.process.last_model import name_of, read_last, want, want_no_more
from server.process.lock import lock_holder
from server.process.places import RuntimeDirectoryError, find_places
from server.process.probe import NoAnswer, ask_health
from server.process.spawn import StartedEngine
from server.wire import Health

LOAD_PATIENCE_S = 600.0
"""For a model that loads, as long as its engine says so."""
SILENCE_PATIENCE_S = 60.0
"""For an engine that is there but says nothing: importing torch from a cold disk can take this long."""
BUSY_PATIENCE_S = 60.0
"""For an engine that must go but still has requests to finish."""
QUIET_S = 5.0
"""Nobody waits longer than this without being told for what."""
MOST_STARTS = 5
POLL_S = 0.05
GO_BACK = "`--model embedded` or `draftline stop` goes back to the embedded model"


class EngineUnavailable(Exception):  # noqa: N818
    """There is no engine to talk to: it can't be started, died or does not answer. str() is one line."""


class Claim:
    """What one client may do to an engine that serves others. It is the same one over all of a client's connections.

    Who comes may replace what runs, once. After that others may have come, and two that disagree would take turns
    forever: so a client takes the engine back only from one that nobody else is connected to.
    """

    def __init__(self) -> None:
        self.spent = False


@dataclass(frozen=True)
class _Replacement:
    """What a client puts in the place of one engine. since: when it found the model good for that."""

    pid: int
    target: str
    since: float


class Attachment:
    """One client's way to a ready engine."""

    def __init__(
        self,
        *,
        start: bool,
        model: str | None,
        claim: Claim,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """model: as given by the user, or None. tell: hears, in one line each, that a running engine has to go and
        why, which model is started when nobody named one, and what takes long.

        Without ``start`` nothing is started or replaced. Raises EngineUnavailable for a model that isn't there.
        """
        try:
            self._model = asked_model(model)
            self._path = str(find_model(self._model)) if self._model else None
            self.places = find_places()
        except (ModelNotFound, RuntimeDirectoryError) as error:
            raise EngineUnavailable(str(error)) from error
        self._tell = tell
        self._may_start = start
        self._claim = claim
        self._came_before = claim.spent
        self._started: StartedEngine | None = None
        self._starts = 0
        self._replacing: _Replacement | None = None
        self._ending_since: dict[int, float] = {}
        self._told: set[str] = set()

    async def wait_until_ready(self, http: httpx.AsyncClient) -> Health:
        """The health of an engine that takes requests. Raises EngineUnavailable."""
        try:
            health = await self._wait_until_ready(http)
        except BaseException:
            if self._replacing is not None:
                want_no_more(self.places, self._replacing.target)
            raise
        self._claim.spent = True
        return health

    async def _wait_until_ready(self, http: httpx.AsyncClient) -> Health:
        begin = heard = time.monotonic()
        while True:
            with contextlib.suppress(NoAnswer):
                health = await ask_health(http)
                if health is None:
                    self._start_engine()
                else:
                    if await self._will_do(http, health):
                        return health
                    # Only now: a model that is checked meanwhile takes as long as it takes.
                    heard = time.monotonic()
                    if heard - begin > QUIET_S and health.status == "loading":
                        self._tell_once(f"the engine (process {health.pid}) is still loading {health.model}")
            now = time.monotonic()
            if now - begin > LOAD_PATIENCE_S or now - heard > SILENCE_PATIENCE_S:
                holder = lock_holder(self.places.lock)
                raise EngineUnavailable(
                    f"the engine process {holder} does not answer; end it with `draftline stop` and try again"
                    if holder
                    else "the engine did not start in time; see " + str(self.places.log)
                )
            await asyncio.sleep(POLL_S)

    async def _will_do(self, http: httpx.AsyncClient, health: Health) -> bool:
        """Whether this engine takes requests now and is the right one; a wrong one is asked to go."""
        if health.status == "stopping":
            self._wait_for_its_end(health)
            return False
        if health.status == "loading" and self._may_start:
            # Its model may be the wrong one, or no good: whoever wants it hears that first, and then it has ended.
            return False
        fault = self._fault(health)
        if fault is None:
            return health.status == "ready"
        if not self._may_start:
            raise EngineUnavailable(f"the running engine can't be used: {fault}; end it with `draftline stop`")
        await self._replace(http, health, fault)
        return False

    def _wait_for_its_end(self, health: Health) -> None:
        waited = time.monotonic() - self._ending_since.setdefault(health.pid, time.monotonic())
        if health.active and waited > BUSY_PATIENCE_S:
            raise EngineUnavailable(
                f"the engine process {health.pid} is to end but is still busy with {_requests(health)}; wait, or end "
                f"it at once with `draftline stop`, and try again"
            )
        if waited > QUIET_S:
            busy = f" and still busy with {_requests(health)}" if health.active else ""
            self._tell_once(f"the engine (process {health.pid}) is ending{busy}", of=f"the end of {health.pid}")

    async def _replace(self, http: httpx.AsyncClient, health: Health, fault: str) -> None:
        """Ask the engine to go as soon as it has nothing to do; until then it serves everybody, us excepted."""
        if self._came_before and health.clients > 1:
            raise EngineUnavailable(
                f"another client keeps the engine (process {health.pid}) at the model {health.model}, and "
                f"{self._path} is asked for; close that client, or end the engine with `draftline stop`"
            )
        if self._replacing is None:
            target = self._model or name_of(health)
            await self._check_model(target)
            self._replacing = _Replacement(health.pid, target, time.monotonic())
            when = f" once it is done with {_requests(health)}" if health.active else ""
            self._tell(f"the running engine (process {health.pid}) is replaced{when}: {fault}")
            # What was heard is as old as the check is long: the engine may be another one's by now.
            return
        if health.pid != self._replacing.pid:
            raise EngineUnavailable(
                f"the running engine can't be used: {fault}; another command started it: wait until that has ended, "
                f"or end the engine with `draftline stop`, and try again"
            )
        if time.monotonic() - self._replacing.since > BUSY_PATIENCE_S:
            raise EngineUnavailable(
                f"the engine (process {health.pid}) goes on with the model {health.model}: it is still busy with "
                f"{_requests(health)} of other clients; wait, or end it with `draftline stop`, and try again"
            )
        if not health.active:
            want(self.places, self._replacing.target)
            await self._ask_to_go(http, health, fault)

    async def _ask_to_go(self, http: httpx.AsyncClient, health: Health, fault: str) -> None:
        wish = {"when": "idle", "pid": health.pid, "why": f"a client replaces it: {fault}"}
        # Unless it says that it goes on, it may have heard.
        self._claim.spent = True
        with contextlib.suppress(httpx.TransportError, ValueError):
            answer = await http.post("/draftline/v1/stop", json=wish, timeout=5.0)
            self._claim.spent = self._came_before or answer.json().get("status") == "stopping"

    async def _check_model(self, model: str) -> None:
        """A file that is no good must not cost anybody the engine that works. Raises EngineUnavailable."""
        try:
            path = find_model(model)
        except ModelNotFound as error:
            raise EngineUnavailable(str(error)) from error
        line = f"the model {path} is being checked before it takes the running engine's place"
        late = asyncio.get_running_loop().call_later(QUIET_S, self._tell_once, line)
        try:
            problem = await model_problem(path)
        except OSError as error:
            problem = f"{path} can't be checked: {error}"
        finally:
            late.cancel()
        if problem is not None:
            raise EngineUnavailable(f"{problem.rstrip('.')}; the running engine goes on with its model")

    def _fault(self, health: Health) -> str | None:
        """Why a running engine must be replaced, None when it will do."""
        if self._path is not None and health.model != self._path:
            return f"it holds the model {health.model}, and {self._path} is asked for"
        mine = self._started is not None and self._started.pid == health.pid
        # A client that has been running since before an upgrade must not undo it.
        if mine or not self._may_start or self._came_before:
            return None
        if health.version != __version__:
            return f"it is of version {health.version}, and this is version {__version__}"
        with contextlib.suppress(OSError):
            if model_stamp(Path(health.model)) != health.model_stamp:
                return f"the file {health.model} has changed since it was loaded"
        return None

    def _start_engine(self) -> None:
        """Nobody listens: start an engine, or see what became of the one that was started."""
        if self._started is not None:
            code = self._started.exit_code
            if code is None:
                return
            if code not in (EXIT_ALREADY_RUNNING, EXIT_STOPPED) or self._starts >= MOST_STARTS:
                self._failed(self._started)
            # Another client's engine was first, or somebody stopped ours: look again.
            self._started = None
        if not self._may_start:
            raise EngineUnavailable("no engine is running; `draftline serve` starts one")
        model = self._replacing.target if self._replacing else self._model
        if self._path is None and self._replacing is None:
            # Nobody named one: what ran goes on, or what somebody is about to put in its place.
            model = read_last(self.places).next
            self._check_last(model)
        self._starts += 1
        try:
            self._started = StartedEngine(self.places, model)
        except OSError as error:
            raise EngineUnavailable(f"the engine can't be started: {error}") from error

    def _check_last(self, model: str | None) -> None:
        if model is None or model == EMBEDDED:
            return
        try:
            find_model(model)
        except ModelNotFound as error:
            want_no_more(self.places, model)
            raise EngineUnavailable(f"the model that ran last can't be started again: {error}; {GO_BACK}") from error
        self._tell_once(f"no model is named, so an engine is started with the one that ran last, {model}; {GO_BACK}")

    def _failed(self, engine: StartedEngine) -> None:
        """The engine that was started here is gone. Raises EngineUnavailable unless what ran before is to come."""
        words = engine.last_words()
        last = read_last(self.places)
        if engine.model is not None:
            want_no_more(self.places, engine.model)
        if self._path is None and self._replacing is None and engine.model and last.wanted == engine.model:
            self._tell(words)
            return
        if last.ran is None:
            raise EngineUnavailable(words)
        if last.ran == (engine.model or EMBEDDED):
            hint = "" if last.ran == EMBEDDED else f"; it is what ran last: {GO_BACK}"
            raise EngineUnavailable(words + hint)
        raise EngineUnavailable(f"{words}; what ran before, {last.ran}, is started for the next who names no model")

    def _tell_once(self, line: str, of: str | None = None) -> None:
        """of: what it is about, where the line changes with time."""
        if (of or line) not in self._told:
            self._told.add(of or line)
            self._tell(line)


def _requests(health: Health) -> str:
    return "1 request" if health.active == 1 else f"{health.active} requests"
