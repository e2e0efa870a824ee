"""Real engine processes for tests: started, watched and surely ended, each in a runtime directory of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from server.process.lock import lock_holder
from server.process.places import Places
from server.wire import Health

SCRIPTED_COMMAND = [sys.executable, "-P", "-E", str(Path(__file__).parent / "scripted_serve.py")]
"""``draftline`` with an engine that needs no model and no torch."""
REAL_COMMAND = [sys.executable, "-P", "-E", "-m", "server.cli"]

EMPTY_MODEL = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0)
"""A model file's header without metadata and tensors: enough for a scripted engine."""


class EngineHome:
    """One runtime directory, the engines that run in it and a file that passes for a model."""

    def __init__(self, directory: Path, command: list[str] | None = None) -> None:
        self.places = Places(directory, directory)
        self.command = command or SCRIPTED_COMMAND
        self.environment = {"DRAFTLINE_RUNTIME_DIR": str(directory), "OMP_NUM_THREADS": "1"}
        self._processes: list[subprocess.Popen[str]] = []

    def model(self, name: str = "scripted.gguf") -> Path:
        path = self.places.runtime / name
        path.write_bytes(EMPTY_MODEL)
        return path

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        """Nothing of the developer's own settings."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTLINE_")}
        return inherited | self.environment | more

    def run(self, *arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        """``draftline ARGUMENTS`` to its end."""
        return subprocess.run(
            [*self.command, *arguments],
            env=self._environment(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """``draftline serve ARGUMENTS``, not waited for."""
        process = subprocess.Popen(
            [*self.command, "serve", *arguments],
            env=self._environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def serve(self, *arguments: str, **environment: str) -> Health:
        """``draftline serve`` with a scripted model unless the arguments name one, once it is ready."""
        if "--model" not in arguments:
            arguments = ("--model", str(self.model()), *arguments)
        process = self.start(*arguments, **environment)
        wait_until(lambda: process.poll() is not None or self.health_if_ready() is not None, 60)
        health = self.health_if_ready()
        assert health is not None, process.communicate()[1]
        return health

    def http(self) -> httpx.Client:
        """A client on the socket."""
        transport = httpx.HTTPTransport(uds=str(self.places.socket), trust_env=False, verify=False)
        return httpx.Client(transport=transport, base_url="http://localhost", trust_env=False, timeout=30)

    @property
    def url(self) -> str:
        """The published address of its loopback HTTP."""
        return str(json.loads(self.places.published.read_text(encoding="utf-8"))["url"])

    def health(self) -> Health | None:
        with self.http() as http, contextlib.suppress(httpx.TransportError):
            return Health.from_json(http.get("/health").json())
        return None

    def health_if_ready(self) -> Health | None:
        health = self.health()
        return health if health and health.status == "ready" else None

    def log(self) -> str:
        return self.places.log.read_text(encoding="utf-8") if self.places.log.exists() else ""

    def wait_for_end(self, pid: int) -> None:
        """Until a process that was started here has ended."""
        next(process for process in self._processes if process.pid == pid).communicate(timeout=60)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if (pid := lock_holder(self.places.lock)) is not None:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def engine_home(command: list[str] | None = None) -> Iterator[EngineHome]:
    """A home in a short path of its own: a socket's path may have little more than 100 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    home = EngineHome(directory, command)
    try:
        yield home
    finally:
        home.close()
        shutil.rmtree(directory, ignore_errors=True)


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "this did not happen in time"
        time.sleep(0.02)


def process_is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False
