"""The native endpoint of Draftline's own clients: segments in, NDJSON events out (``server/wire.py``)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from prompts.segments import Role, Segment
from prompts.stops import StopName, stop_rule
from server.api.ascii_json import AsciiJson
from server.api.errors import ApiError, bad_request
from server.api.fields import Fields, read_json_object
from server.api.host import EngineHost
from server.api.running import Asked, Running, first_difference, start
from server.api.sampling import MAX_TOKENS, read_sampling
from server.api.streaming import StreamedAnswer
from server.request import FinishedEvent, PrefillEvent, Priority
from server.wire import ENGINE_PID_HEADER, CompletionFinished, CompletionProgress, Route

StopWhen = Literal["now", "idle"]
MOST_PID = 2**31 - 1
MOST_WORDS = 500
"""Characters of a client's reason."""


async def complete(request: Request) -> Response:
    """``POST /draftline/v1/complete``"""
    host: EngineHost = request.app.state.host
    asked = _read(await read_json_object(request))
    running = await start(host, asked)
    answer = StreamedAnswer(_lines(running), media_type="application/x-ndjson", keep_alive=b"\n", cancel=running.cancel)
    answer.headers[ENGINE_PID_HEADER] = str(os.getpid())
    return answer


async def stop(request: Request) -> Response:
    """``POST /draftline/v1/stop``, with ``{"when": "now" | "idle", "pid": n, "why": a line}``: ends the process.

    pid: the process that is meant; another one, which took its place meanwhile, refuses (409).

    idle: only if it has nothing to do at this moment, and a client that names no model starts it again. A busy engine
    goes on: nobody's wish for another one may keep it from serving, least of all the wish of one who has gone.
    """
    host: EngineHost = request.app.state.host
    when, why = "now", ""
    if await request.body():
        fields = await read_json_object(request)
        when = fields.choice("when", "now", StopWhen)
        pid = fields.integer("pid", None, 1, MOST_PID)
        if pid is not None and pid != os.getpid():
            raise ApiError(409, "another_engine", f"this is the engine process {os.getpid()}, and not {pid}", "pid")
        why = " ".join((fields.optional_text("why") or "").split())[:MOST_WORDS]
    if when == "now" or not host.active:
        told = f"asked to end{': ' if why else ''}{why}"
        host.stop(told, when_idle=False, on_purpose=when == "now")
    return AsciiJson({"status": host.status, "active": host.active})


def _read(fields: Fields) -> Asked:
    route: Route = fields.choice("route", "fim", Route)
    segments = tuple(_read_segment(part) for part in fields.objects("segments"))
    if not segments:
        raise bad_request("segments: at least one segment is required", "segments")
    name: StopName = fields.choice("stop", "none", StopName)
    before = "".join(s.text for s in segments if s.role in ("prefix", "text"))
    after = "".join(s.text for s in segments if s.role == "suffix")
    priority: Priority = fields.choice("priority", "completion", Priority)
    return Asked(
        route=route,
        segments=segments,
        max_tokens=fields.integer("max_tokens", 128, 1, MAX_TOKENS),
        sampling=read_sampling(fields.object("sampling"), temperature=0.0),
        stop=stop_rule(name, before, after),
        timeout_ms=fields.number("timeout_ms", None, 1, 3_600_000),
        priority=priority,
        speculate=fields.boolean("speculate", True),
        prediction=fields.optional_text("prediction") or "",
        progress=fields.boolean("progress", False),
    )


def _read_segment(part: Fields) -> Segment:
    role: Role = part.choice("role", None, Role)
    return Segment(
        role=role,
        text=part.text("text"),
        source=part.optional_text("source") or "",
        path=part.optional_text("path"),
        checkpoint=part.boolean("checkpoint", False),
    )


async def _lines(running: Running) -> AsyncGenerator[bytes]:
    async for event in running.events():
        if isinstance(event, FinishedEvent):
            finished = CompletionFinished(
                reason=event.reason,
                counters=event.counters,
                detail=event.detail,
                first_difference=first_difference(running.prompt, event.counters.shared),
                segment_tokens=running.prompt.lengths,
            )
            yield _line(finished.to_json())
        elif isinstance(event, PrefillEvent):
            yield _line(CompletionProgress(event.done, event.total).to_json())
        else:
            yield _line({"text": event.text})


def _line(value: object) -> bytes:
    # ASCII only: no character of the text can be taken for a line end.
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
