"""An engine without a model: speaks the native endpoint on the Unix socket from a thread of the test's own process.

What it answers is a function of the request, so a test decides every piece, pause and failure; what it was asked and
which requests were cancelled is kept. The real engine can't be made to answer on purpose as a test needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from server import __version__
from server.models_known import model_stamp
from server.process.last_model import write_last
from server.process.lock import EngineLock
from server.process.places import Places
from server.wire import Health

Request = dict[str, Any]


@dataclass
class Script:
    """One answer. pieces: the text as it is streamed, and events of other kinds as JSON. pause: seconds before each
    piece. hang: never finish. die: after the pieces the engine is gone, as if killed. error: (HTTP status, code,
    message) instead of an answer."""

    pieces: list[str | dict[str, Any]] = field(default_factory=list)
    pause: float = 0.0
    reason: str = "stop"
    hang: bool = False
    die: bool = False
    error: tuple[int, str, str] | None = None
    counters: dict[str, Any] = field(default_factory=dict)


def script(text: str, **more: Any) -> Script:
    return Script(pieces=[text] if text else [], **more)


COUNTERS = {
    "prompt_tokens": 100,
    "prefilled": 40,
    "reused": 60,
    "generated": 9,
    "drafted": 12,
    "accepted": 7,
    "cycles": 4,
    "ttft_ms": 12.5,
    "total_ms": 30.0,
    "prefill_tokens_per_second": 800.0,
    "tokens_per_second": 123.4,
}


class FakeEngine:
    """Serves from construction to ``close``. answer: request -> Script, may be replaced at any time."""

    def __init__(self, runtime: Path, answer: Callable[[Request], Script] | None = None, **health: Any) -> None:
        self.answer = answer or (lambda request: script("value"))
        self.requests: list[Request] = []
        self.cancelled: list[Request] = []
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The head of a model file only: a client asks for it again, and no real engine can outlive a test.
        model = runtime / "fake.gguf"
        if not model.exists():  # a client may be reading what another fake engine has left
            model.write_bytes(b"GGUF")
        self.health = (
            Health(
                status="ready",
                version=__version__,
                pid=os.getpid(),
                model=str(model),
                model_id="fake",
                model_stamp=model_stamp(model),
                context_length=4096,
                prefill_tokens_per_second=1000.0,
            ).to_json()
            | health
        )
        write_last(Places(runtime, runtime), str(self.health["model"]))
        # Kept after its death, so that no client starts a real engine in its place.
        self._lock = self._take_lock(runtime / "engine.lock")
        self._path = runtime / "engine.sock"
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._listen())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    _locked: ClassVar[set[Path]] = set()

    @classmethod
    def _take_lock(cls, path: Path) -> EngineLock | None:
        """None where a fake engine has it. A real one that waited for the last fake one's ends first: the socket that
        it takes with it must not be ours."""
        if path in cls._locked:
            return None
        end = time.monotonic() + 20
        while (lock := EngineLock.acquire(path)) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"{path} is held by somebody else")
            time.sleep(0.02)
        cls._locked.add(path)
        return lock

    async def _listen(self) -> asyncio.AbstractServer:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        return await asyncio.start_unix_server(self._serve, sock=listener)

    def die(self) -> None:
        """Gone while nobody asks; its lock stays, so that no client starts a real engine in its place."""
        asyncio.run_coroutine_threadsafe(self._dead(), self._loop).result(5)

    async def _dead(self) -> None:
        self._die()

    def close(self) -> None:
        """Gone like a killed process: every connection is cut and nobody listens any more."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join(5)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            self._locked.discard(self._path.with_name("engine.lock"))

    def wait_until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"the engine was asked {len(self.requests)} times")
            time.sleep(0.005)

    def texts(self, role: str, index: int = -1) -> list[str]:
        """The texts of one request's segments of a role."""
        return [segment["text"] for segment in self.requests[index]["segments"] if segment["role"] == role]

    def _die(self) -> None:
        self._server.close()
        self._path.unlink(missing_ok=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        self._die()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.call_later(0.01, self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                target = head.split(b" ")[1].decode()
                length = next(
                    (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0
                )
                body = await reader.readexactly(length)
                if target == "/draftline/v1/complete":
                    await self._complete(json.loads(body), reader, writer)
                elif target == "/health":
                    _reply(writer, 200, self.health)
                else:
                    _reply(writer, 404, {"error": {"message": "no such path", "code": "not_found"}})
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    async def _complete(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request["priority"] != "background":  # a server's idle time may come in the middle of another test
            self.requests.append(request)
        answer = self.answer(request)
        if answer.error is not None:
            status, code, message = answer.error
            _reply(writer, status, {"error": {"message": message, "code": code}})
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n")
        streaming = asyncio.create_task(self._stream(request, answer, writer))
        # A client has nothing to say while it is answered: what comes is the end of its connection.
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait({streaming, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not streaming.done():
            streaming.cancel()
            self.cancelled.append(request)
            raise ConnectionResetError
        gone.cancel()
        await asyncio.gather(streaming, gone, return_exceptions=True)

    async def _stream(self, request: Request, answer: Script, writer: asyncio.StreamWriter) -> None:
        for piece in answer.pieces:
            await asyncio.sleep(answer.pause)
            _chunk(writer, {"text": piece} if isinstance(piece, str) else piece)
            await writer.drain()
        if answer.die:
            self._die()
        if answer.hang or answer.die:
            await asyncio.Event().wait()
        finished = {
            "reason": answer.reason,
            "detail": "",
            "counters": COUNTERS | answer.counters,
            "first_difference": 0,
            "segment_tokens": [len(segment["text"]) // 3 + 1 for segment in request["segments"]],
        }
        _chunk(writer, {"finished": finished})
        writer.write(b"0\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, value: Any) -> None:
    data = json.dumps(value).encode() + b"\n"
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _reply(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    data = json.dumps(value).encode()
    writer.write(
        b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data)
    )
