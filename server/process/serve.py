"""``draftline serve``: one engine process from its lock to its end."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from server import __version__
from server.api.app import create_app
from server.api.host import EngineHost
from server.models_known import ModelNotFound, asked_model, find_model
from server.process.address import AddressError, bind_loopback, bind_socket, check_loopback, http_url
from server.process.connections import LimitedProtocol
from server.process.exits import EXIT_ALREADY_RUNNING, EXIT_FAILED
from server.process.last_model import forget_last, lasting_name, write_last
from server.process.lock import EngineLock, lock_holder
from server.process.places import Places, RuntimeDirectoryError, find_places, writing
from server.threads.free_cpus import FreeCpus

if TYPE_CHECKING:
    from server.engine import Engine

log = logging.getLogger("draftline.engine")

DEFAULT_IDLE_MINUTES = 30.0
LOG_BYTES = 2_000_000
LOCK_PATIENCE_S = 10.0
"""How long a new engine waits for one that is ending."""
STOP_PATIENCE_S = 10.0
"""How long an ending engine may take before the process ends anyway."""


class ServeError(Exception):
    """The engine can't serve. str() is one line; exit_code tells a client why."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def serve(
    model: str | None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    idle_minutes: float = DEFAULT_IDLE_MINUTES,
    cache_dir: str | None = None,
) -> None:
    """Load a model and serve it until stopped, idle or killed. Raises ServeError.

    model: a path or a known name, None for the embedded one. port: None takes a free one and publishes it.
    cache_dir: a folder for what the next engine can reuse.
    """
    try:
        check_loopback(host)
        path = find_model(asked_model(model))
        places = find_places()
        with (
            contextlib.closing(_take_lock(places)),
            contextlib.closing(bind_loopback(host, port)) as listener,
            _socket(places) as unix,
        ):
            _start_log(places)
            folder = Path(cache_dir).expanduser().absolute() if cache_dir else None
            if folder is not None:
                _tell_if_unusable(folder)
            process = EngineProcess(path, places, unix, listener, idle_minutes * 60, folder)
            try:
                asyncio.run(process.run())
            finally:
                with contextlib.suppress(OSError):  # a folder of that name, which has been told
                    places.published.unlink()
    except (AddressError, ModelNotFound, RuntimeDirectoryError) as error:
        raise ServeError(str(error)) from error
    if process.failure:
        raise ServeError(process.failure)


def _take_lock(places: Places) -> EngineLock:
    """The lock, once an engine that is ending has let it go. Raises ServeError when one stays."""
    with writing(places.lock):
        lock = EngineLock.acquire(places.lock)
    if lock is not None:
        return lock

    from server.process.probe import NoAnswer, probe  # the HTTP client takes time to import

    async def wait() -> EngineLock:
        deadline = asyncio.get_running_loop().time() + LOCK_PATIENCE_S
        running = None
        while (lock := EngineLock.acquire(places.lock)) is None:
            with contextlib.suppress(NoAnswer):
                running = await probe(places.socket)
            if running is not None and running.status != "stopping":
                raise ServeError(
                    f"an engine is already running (process {running.pid}, version {running.version}, model "
                    f"{running.model_id}); end it with `draftline stop`",
                    EXIT_ALREADY_RUNNING,
                )
            if asyncio.get_running_loop().time() > deadline:
                raise ServeError(
                    f"another engine (process {lock_holder(places.lock)}) holds {places.lock} and does not answer; "
                    f"end it with `draftline stop`",
                    EXIT_ALREADY_RUNNING,
                )
            await asyncio.sleep(0.05)
        return lock

    return asyncio.run(wait())


@contextlib.contextmanager
def _socket(places: Places) -> Iterator[socket.socket]:
    listener = bind_socket(places.socket)
    try:
        yield listener
    finally:
        places.socket.unlink(missing_ok=True)
        listener.close()


def _start_log(places: Places) -> None:
    """Everything the process has to say goes to the log file, crashes in native code included."""
    # A log that can't be written (a full disk) is no reason to fail, nor to print a traceback for each of its lines.
    logging.raiseExceptions = False
    with writing(places.log):
        handler = RotatingFileHandler(
            places.log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace"
        )
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    faulthandler.enable(file=places.log.open("a"))


def load_engine(model: Path, on_failure: Callable[[], None], cache_dir: Path | None = None) -> Engine:
    """Open, check and load a model file; everything that imports torch happens in here.

    on_failure, cache_dir: as `Engine` has them. Raises ServeError.
    """
    free_cpus = FreeCpus()  # watches while torch is imported
    from server.gguf.errors import ModelFileError
    from server.gguf.reader import ModelFile
    from server.kernel.errors import KernelFault
    from server.model.config import ModelConfig
    from server.process.memory import TooLittleMemory, check_memory

    try:
        file = ModelFile.open(model)
        # First of all: a file of another architecture lacks other things too, which are not what is wrong with it.
        ModelConfig.from_file(file)
        from server.engine import Engine
        from server.executor import choose

        choice = choose(file, make=True)
        if choice.kernel is None:
            check_memory(file)
        return Engine(model, choice=choice, free_cpus=free_cpus, on_failure=on_failure, cache_dir=cache_dir)
    except KernelFault as error:
        raise ServeError(
            f"{model} can't be run on the GPU: {error}; please report it, and start the engine with "
            "CUDA_VISIBLE_DEVICES= to run it on the CPU"
        ) from error
    except (ModelFileError, TooLittleMemory) as error:
        raise ServeError(str(error)) from error
    except MemoryError as error:
        raise ServeError(f"{model} does not fit into memory; name a smaller model with --model") from error


class _Server(uvicorn.Server):
    """Leaves signals to EngineProcess: uvicorn's own handling ends the process before it could clean up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EngineProcess:
    """Serves both addresses while the model loads on a thread of its own, and watches for the end."""

    def __init__(
        self,
        model: Path,
        places: Places,
        unix: socket.socket,
        loopback: socket.socket,
        idle_s: float,
        cache_dir: Path | None = None,
    ) -> None:
        self.failure: str | None = None
        self._cache_dir = cache_dir
        self._model = model
        self._places = places
        self._sockets = [unix, loopback]
        self._url = http_url(loopback)
        self._idle_s = idle_s
        self._host = EngineHost(model, on_stop=self._end)
        self._host.clients = self._clients
        self._engine: Engine | None = None
        self._server = _Server(
            uvicorn.Config(
                create_app(self._host),
                http=LimitedProtocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # A client that keeps its connection is a client that is still there: see _idle.
                timeout_keep_alive=24 * 3600,
                timeout_graceful_shutdown=2,
            )
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, self._on_signal)
        self._publish()
        log.info("version %s, model %s, %s, %s", __version__, self._model, self._places.socket, self._url)
        threading.Thread(target=self._load, args=(loop,), name="load", daemon=True).start()
        idle = asyncio.create_task(self._stop_when_idle())
        await self._server.serve(sockets=self._sockets)
        idle.cancel()
        if self._host.on_purpose:
            forget_last(self._places)
        # The socket goes before the engine is torn down: a client that comes now starts a new engine.
        self._places.socket.unlink(missing_ok=True)
        self._close_engine()
        why = self.failure or self._host.why
        log.info("ended%s", f": {why}" if why else "")
        if self._host.why and not self.failure:
            # Whoever started it by hand sees why it is gone.
            with contextlib.suppress(OSError):
                print(f"draftline {__version__} ends: {self._host.why}", flush=True)

    def _end(self) -> None:
        self._server.should_exit = True

    def _on_signal(self) -> None:
        if self._host.status == "stopping":
            self._server.force_exit = True
        self._host.stop("ended by a signal", when_idle=False, on_purpose=True)

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            engine = load_engine(self._model, partial(self._engine_failed, loop), self._cache_dir)
        except ServeError as error:
            failure = str(error)
        except Exception as error:
            log.exception("loading failed")
            failure = f"{self._model} can't be loaded: {type(error).__name__}: {error}; see {self._places.log}"
        else:
            loop.call_soon_threadsafe(self._ready, engine)
            return
        loop.call_soon_threadsafe(self._failed, " ".join(failure.split()))

    def _ready(self, engine: Engine) -> None:
        self._engine = engine
        self._host.ready(engine)
        write_last(self._places, lasting_name(str(self._model), self._host.model_id))
        log.info("ready after %.1f s", self._host.health().uptime_s)
        line = f"draftline {__version__} serves {self._host.model_id} on {self._places.socket} and {self._url}"
        # Where standard output can't be written, the command says so as it ends; its clients find the engine anyway.
        with contextlib.suppress(OSError):
            print(line, flush=True)

    def _engine_failed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing can be computed any more, and a client that comes now shall start a new engine: those that are here
        get their errors, then the process ends."""
        log.error("the engine failed and ends")
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(partial(self._host.stop, "the engine failed", when_idle=True))

    def _failed(self, failure: str) -> None:
        self.failure = failure
        self._host.stop(when_idle=False)

    def _publish(self) -> None:
        """Tell people and scripts where the engine is: the port may be any free one."""
        facts = {
            "pid": os.getpid(),
            "version": __version__,
            "model": str(self._model),
            "socket": str(self._places.socket),
            "url": self._url,
        }
        temporary = self._places.published.with_suffix(".new")
        with writing(self._places.published):
            temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            temporary.chmod(0o600)
            temporary.replace(self._places.published)

    async def _stop_when_idle(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._idle_s / 4))
            if self._clients():
                self._host.touch()
            elif self._host.idle_s > self._idle_s:
                why = f"no client for {self._idle_s / 60:.1f} minutes"
                log.info("%s", why)
                self._host.stop(why, when_idle=True, on_purpose=True)

    def _clients(self) -> int:
        """Open connections on the Unix socket: a language server keeps one while its editor is open."""
        connections = self._server.server_state.connections
        return sum(isinstance(c.transport.get_extra_info("sockname"), str) for c in connections)

    def _close_engine(self) -> None:
        if self._engine is None:
            return
        # Nothing may keep a dead engine's memory and lock: if the worker doesn't end, the process does.
        watchdog = threading.Timer(STOP_PATIENCE_S, os._exit, args=(EXIT_FAILED,))
        watchdog.daemon = True
        watchdog.start()
        self._engine.close()
        watchdog.cancel()


def _tell_if_unusable(folder: Path) -> None:
    """One line where kept prompts can't go into a folder: the engine serves all the same."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no folder can be made or written there" if there.is_dir() else f"{there} is not a folder"
        print(f"draftline: prompts can't be kept in {folder}: {why}; the engine serves without", file=sys.stderr)


def report(error: ServeError) -> None:
    """The one line of a failed start, on stderr and, when it has been opened, in the log."""
    if logging.getLogger().handlers:
        log.error("%s", error)
    print(f"draftline: {error}", file=sys.stderr, flush=True)
