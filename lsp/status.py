"""What the language server tells people: its state, one line for each request, and progress while a model loads.

Nothing that is sent or logged here holds source text.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from lsp.completion import Outcome
from lsp.engine import State
from server.wire import CompletionProgress

STATUS = "draftline/status"
"""Notification to the editor: {state, message, model, reading, last}, reading being {done, total} or null and last
{reason, kind, uri, version, figures...}."""


class Status:
    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self._state: State = "loading"
        self._message = ""
        self._model: str | None = None
        self._reading: CompletionProgress | None = None
        self._last: dict[str, Any] | None = None
        self._shown: set[str] = set()
        self._progress: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()

    def state(self, state: State, message: str, model: str | None) -> None:
        """A change of the engine's state; trouble is shown to the user once and logged each time."""
        self._state, self._message, self._model = state, message, model or self._model
        if state == "loading":
            self._begin_progress()
        else:
            self._loaded.set()
        if state == "unavailable":
            self.trouble(message)
        else:
            self.log(f"engine {state}: {message}")
        if state == "ready":
            self._shown.clear()
        self._send()

    def request(self, kind: str, uri: str, version: int | None, outcome: Outcome) -> None:
        """One request ended: exactly one line and one notification."""
        figures = outcome.figures()
        self._last = {"reason": outcome.reason, "kind": kind, "uri": uri, "version": version, **figures}
        if outcome.detail:
            self._last["detail"] = outcome.detail
        words = [f"completion reason={outcome.reason} kind={kind} version={version}"]
        words += [f"{name}={json.dumps(value)}" for name, value in figures.items()]
        if outcome.first_difference is not None:
            self._last |= {"first_difference": outcome.first_difference, "difference": outcome.difference}
            words.append(f"first_difference={outcome.first_difference} difference={json.dumps(outcome.difference)}")
        if outcome.detail:
            words.append(f"detail={outcome.detail}")
        self.log(" ".join(words))
        self._send()

    def reading(self, progress: CompletionProgress | None) -> None:
        """How far the engine is with a long prompt; None when it is read."""
        self._reading = progress
        self._send()

    def log(self, line: str, kind: types.MessageType = types.MessageType.Log) -> None:
        self._server.window_log_message(types.LogMessageParams(kind, _one_line(line)))

    def trouble(self, line: str) -> None:
        """Something the user should know: logged, and shown unless it was shown since things were well."""
        line = _one_line(line)
        self.log(line, types.MessageType.Error)
        if line not in self._shown:
            self._shown.add(line)
            self._server.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"Draftline: {line}"))

    def _send(self) -> None:
        message, reading = self._message, None
        if self._reading is not None and self._state == "ready":
            message = f"reading {self._reading.done:,} of {self._reading.total:,} tokens"
            reading = {"done": self._reading.done, "total": self._reading.total}
        status = {
            "state": self._state,
            "message": _one_line(message),
            "model": self._model,
            "reading": reading,
            "last": self._last,
        }
        self._server.protocol.notify(STATUS, status)

    def _begin_progress(self) -> None:
        self._loaded.clear()
        window = self._server.client_capabilities.window
        if window is not None and window.work_done_progress and self._progress is None:
            self._progress = asyncio.create_task(self._show_progress())
            self._progress.add_done_callback(lambda _: setattr(self, "_progress", None))

    async def _show_progress(self) -> None:
        """A progress bar until the engine is there or has failed. An editor may refuse it or never answer."""
        token = f"draftline-{uuid.uuid4()}"
        progress = self._server.work_done_progress
        try:
            async with asyncio.timeout(10):
                await progress.create_async(token)
        except Exception:  # the editor's own error, of any kind: there is no bar then
            return
        progress.begin(token, types.WorkDoneProgressBegin(title="Draftline: loading model", cancellable=False))
        await self._loaded.wait()
        progress.end(token, types.WorkDoneProgressEnd(message=_one_line(self._message)))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
