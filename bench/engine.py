"""A real engine process for a benchmark: in a runtime directory of its own, asked over its socket, surely ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from server.process.places import RUNTIME_DIR_VARIABLE, Places
from server.wire import CompletionFinished, CompletionRequest, Health

COMMAND = (sys.executable, "-P", "-E", "-m", "server.cli")
POLL_S = 0.01
PATIENCE_S = 300.0


class EngineFailed(Exception):  # noqa: N818
    """The engine process ended, or didn't get ready."""


class EngineHome:
    """A runtime directory that lasts as long as the ``with`` block; whatever engine runs in it ends with it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="dl-bench-")
        self.places = Places(Path(self._directory.name), Path(self._directory.name))

    @property
    def environment(self) -> dict[str, str]:
        """For processes that shall use this directory."""
        return {RUNTIME_DIR_VARIABLE: self._directory.name}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(
            [*COMMAND, "stop"], env={**os.environ, **self.environment}, capture_output=True, timeout=60, check=False
        )
        self._directory.cleanup()

    def start(self, model: str | None = None) -> BenchEngine:
        """``draftline serve``, waited for. Raises EngineFailed."""
        began = time.perf_counter()
        process = subprocess.Popen(
            [*COMMAND, "serve", *(["--model", model] if model else [])],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        transport = httpx.HTTPTransport(uds=str(self.places.socket), trust_env=False, verify=False)
        http = httpx.Client(transport=transport, base_url="http://localhost", trust_env=False, timeout=PATIENCE_S)
        while time.perf_counter() - began < PATIENCE_S:
            if process.poll() is not None:
                words = process.communicate()[1].strip()
                raise EngineFailed(f"draftline serve ended at once: {words or process.returncode}")
            try:
                health = Health.from_json(http.get("/health").json())
            except httpx.TransportError:
                health = None
            if health is not None and health.status == "ready":
                return BenchEngine(process, http, health, time.perf_counter() - began)
            time.sleep(POLL_S)
        process.kill()
        process.communicate()
        raise EngineFailed(f"draftline serve was not ready after {PATIENCE_S:.0f} s")


class BenchEngine:
    """A ready engine. start_seconds: from the start of the process to the first "ready" of /health."""

    def __init__(
        self, process: subprocess.Popen[str], http: httpx.Client, health: Health, start_seconds: float
    ) -> None:
        self.pid = process.pid
        self.start_seconds = start_seconds
        self._process = process
        self._http = http
        self.health = health

    def complete(self, request: CompletionRequest) -> tuple[str, CompletionFinished]:
        """The whole answer. Raises EngineFailed when it is refused or ends with an error."""
        answer = self._http.post("/draftline/v1/complete", json=request.to_json())
        if answer.status_code != 200:
            raise EngineFailed(f"a request was refused: {answer.text}")
        lines: list[dict[str, Any]] = [json.loads(line) for line in answer.text.split("\n") if line]
        finished = CompletionFinished.from_json(lines[-1]["finished"])
        if finished.reason in ("error", "timeout", "cancelled"):
            raise EngineFailed(f"a request ended with {finished.reason}: {finished.detail}")
        return "".join(line["text"] for line in lines[:-1]), finished

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._process.terminate()
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
