"""A small language client over a process's standard streams, for the demo, the benchmarks and the tests.

It speaks raw JSON-RPC, so that everything the server sends can be looked at as it came. One thread reads; all
methods may be called from one other thread.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

Message = dict[str, Any]

SERVER_COMMAND = (sys.executable, "-P", "-m", "lsp.server")
"""The language server of this installation, whatever the working directory holds."""


class ServerGone(Exception):  # noqa: N818
    """The server's output ended."""


class NoEngine(Exception):  # noqa: N818
    """The server could not get an engine. str() is its own line about why."""


class LspError(Exception):
    """The server refused a request. code: JSON-RPC's or the protocol's."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error.get('message')} ({error.get('code')})")
        self.code = error.get("code")
        self.error = error


class LspClient:
    """One editor talking to one server process.

    messages: everything the server sent by itself (notifications and its own requests), in order. stderr: its lines.
    """

    def __init__(
        self,
        command: Sequence[str] = SERVER_COMMAND,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.timeout = timeout
        self.messages: list[Message] = []
        self.stderr: list[str] = []
        self.encoding = "utf-16"
        self._answers: dict[int | str | None, Message] = {}
        self._ids = itertools.count(1)
        self._news = threading.Condition()
        self._write_lock = threading.Lock()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stdin = self.process.stdin
        for read, stream in ((self._read_messages, self.process.stdout), (self._read_stderr, self.process.stderr)):
            threading.Thread(target=read, args=(stream,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Messages

    def send_bytes(self, data: bytes) -> None:
        """Anything at all, for tests of broken frames."""
        with self._write_lock:
            self._stdin.write(data)
            self._stdin.flush()

    def send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.send_bytes(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def notify(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self, method: str, params: Any = None) -> int:
        """Send a request without waiting; the id is for ``result`` and ``cancel``."""
        request_id = next(self._ids)
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    def cancel(self, request_id: int) -> None:
        self.notify("$/cancelRequest", {"id": request_id})

    def result(self, request_id: int, timeout: float | None = None) -> Any:
        """Wait for an answer. Raises LspError, TimeoutError or ServerGone."""
        self.wait_until(lambda: request_id in self._answers, f"an answer to request {request_id}", timeout)
        answer = self._answers.pop(request_id)
        if "error" in answer:
            raise LspError(answer["error"])
        return answer.get("result")

    def answered(self, request_id: int) -> bool:
        return request_id in self._answers

    def request(self, method: str, params: Any = None, timeout: float | None = None) -> Any:
        return self.result(self.start(method, params), timeout)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        """Wait until what the server sent fulfils ``condition``."""
        with self._news:
            end = time.monotonic() + (self.timeout if timeout is None else timeout)
            while not condition():
                if self._ended:
                    words = " / ".join(self.stderr[-3:]) or "none"
                    raise ServerGone(f"the server ended before {what}; its last words: {words}")
                if not self._news.wait(end - time.monotonic()) and time.monotonic() >= end:
                    raise TimeoutError(f"no sign of {what}; the last messages: {self.messages[-3:]}")

    def wait_for(
        self,
        method: str,
        accept: Callable[[Any], bool] = lambda params: True,
        *,
        after: int = 0,
        timeout: float | None = None,
    ) -> Any:
        """The params of the first message of that method, from index ``after`` of ``messages``, that is accepted."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [p for m, p in self.sent(method, after) if accept(p)]
            return bool(found)

        self.wait_until(look, method, timeout)
        return found[0]

    def sent(self, method: str, after: int = 0) -> list[tuple[str, Any]]:
        return [(m["method"], m.get("params")) for m in self.messages[after:] if m.get("method") == method]

    # The protocol's usual steps

    def initialize(
        self,
        *,
        root: Path | None = None,
        encodings: Sequence[str] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        settings: Any = None,
    ) -> Any:
        """initialize and initialized; returns the server's answer."""
        offered: dict[str, Any] = {
            "textDocument": {"inlineCompletion": {}, "synchronization": {}},
            "window": {"workDoneProgress": True},
            **(capabilities or {}),
        }
        if encodings is not None:
            offered["general"] = {"positionEncodings": list(encodings)}
        answer = self.request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": root.as_uri() if root else None,
                "workspaceFolders": [{"uri": root.as_uri(), "name": root.name}] if root else None,
                "capabilities": offered,
                "initializationOptions": settings,
            },
        )
        self.encoding = answer["capabilities"].get("positionEncoding") or "utf-16"
        self.notify("initialized", {})
        return answer

    def wait_ready(self, timeout: float | None = None) -> Any:
        """Wait for the engine; returns the server's status. Raises NoEngine at the first word that there is none."""
        status = self.wait_for("draftline/status", lambda status: status["state"] != "loading", timeout=timeout)
        if status["state"] == "unavailable":
            raise NoEngine(status["message"])
        return status

    def open(self, uri: str, text: str, version: int = 1, language: str = "python") -> None:
        document = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def change(self, uri: str, version: int, *changes: Mapping[str, Any]) -> None:
        identifier = {"uri": uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": identifier, "contentChanges": list(changes)})

    def insert(self, uri: str, version: int, line: int, character: int, text: str) -> None:
        place = {"line": line, "character": character}
        self.change(uri, version, {"range": {"start": place, "end": place}, "text": text})

    def start_inline(self, uri: str, line: int, character: int, *, automatic: bool = False) -> int:
        """Ask for ghost text without waiting; as if by hand unless ``automatic``."""
        return self.start(
            "textDocument/inlineCompletion",
            {
                "textDocument": {"uri": uri},
                "position": {"line": line, "character": character},
                "context": {"triggerKind": 2 if automatic else 1},
            },
        )

    def inline(self, uri: str, line: int, character: int, *, automatic: bool = False) -> list[Message]:
        """The items of ghost text at a position in the negotiated encoding's units."""
        answer = self.result(self.start_inline(uri, line, character, automatic=automatic))
        items: list[Message] = answer["items"] if isinstance(answer, dict) else answer or []
        return items

    def popup(self, uri: str, line: int, character: int) -> list[Message]:
        where = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        answer = self.request("textDocument/completion", {**where, "context": {"triggerKind": 1}})
        items: list[Message] = answer["items"] if isinstance(answer, dict) else answer or []
        return items

    def close(self, timeout: float = 10.0) -> int:
        """shutdown and exit, as far as the server still listens; kills it after ``timeout``. Returns its status."""
        try:
            if self.process.poll() is None:
                self.request("shutdown", timeout=timeout)
                self.notify("exit")
                self._stdin.close()
            return self.process.wait(timeout)
        except (OSError, ServerGone, LspError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            return self.process.wait()

    # Threads

    def _read_messages(self, stream: IO[bytes]) -> None:
        try:
            while (message := _read_frame(stream)) is not None:
                self._take(message)
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def _take(self, message: Message) -> None:
        with self._news:
            if "method" in message:
                self.messages.append(message)
            else:
                self._answers[message.get("id")] = message
            self._news.notify_all()
        if "method" in message and "id" in message:
            with contextlib.suppress(OSError, ValueError):  # the server's input is closed already
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": None})

    def _read_stderr(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.stderr.append(line.decode("utf-8", "replace").rstrip("\n"))


def _read_frame(stream: IO[bytes]) -> Message | None:
    """The next message; None at the end of the stream. Raises ValueError for anything that isn't a frame."""
    length = 0
    while (header := stream.readline()) != b"\r\n":
        if not header:
            return None
        name, _, value = header.decode("ascii").partition(":")
        if name.lower() == "content-length":
            length = int(value)
        elif name.lower() != "content-type":
            raise ValueError(f"not a header: {header!r}")
    message: Message = json.loads(stream.read(length))
    return message
