"""``/v1/completions`` of the OpenAI API; with ``suffix`` it takes the fill-in-the-middle route."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from prompts.segments import Segment
from server.api.ascii_json import AsciiJson
from server.api.errors import ApiError, bad_request
from server.api.fields import Fields, read_json_object
from server.api.host import EngineHost
from server.api.prediction import read_prediction
from server.api.running import Asked, Running, start
from server.api.sampling import MAX_TOKENS, read_sampling
from server.api.stop_strings import StopStrings
from server.api.streaming import StreamedAnswer, unless_gone
from server.request import Counters, FinishedEvent, TextEvent

DEFAULT_MAX_TOKENS = 16
DEFAULT_TEMPERATURE = 1.0
MAX_STOP_STRINGS = 16


@dataclass(frozen=True)
class _Call:
    """What an answer repeats of its request."""

    id: str
    created: int
    model: str
    include_usage: bool

    def chunk(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return self.envelope([choice])

    def envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


async def completions(request: Request) -> Response:
    """``POST /v1/completions``"""
    host: EngineHost = request.app.state.host
    fields = await read_json_object(request)
    check_model(host, fields.optional_text("model"))
    _refuse_unsupported(fields)
    asked = _read(fields)
    stream = fields.boolean("stream", False)
    include_usage = fields.object("stream_options").boolean("include_usage", False)
    running = await start(host, asked)
    call = _Call(f"cmpl-{uuid.uuid4().hex}", int(time.time()), host.model_id, include_usage)
    if stream:
        return StreamedAnswer(
            _server_sent_events(call, running),
            media_type="text/event-stream",
            keep_alive=b": keep-alive\n\n",
            cancel=running.cancel,
        )
    answer = await unless_gone(request, lambda: _whole(call, running), running.cancel)
    return answer if answer is not None else Response(status_code=499)


def check_model(host: EngineHost, name: str | None) -> None:
    """Raises ApiError 404, with the list of known models, for any name but the loaded model's."""
    if name is not None and name != host.model_id:
        raise ApiError(
            404,
            "model_not_found",
            f"there is no model {name!r} here; known models: {host.model_id}",
            "model",
            models=[host.model_id],
        )


def _refuse_unsupported(fields: Fields) -> None:
    """What would change the answer and isn't done must not be ignored silently."""
    if fields.integer("n", 1, 1, 128) != 1:
        raise fields.wrong("n", "1: one answer per request")
    if fields.integer("best_of", 1, 1, 128) != 1:
        raise fields.wrong("best_of", "1: one answer per request")
    if fields.boolean("echo", False):
        raise fields.wrong("echo", "false: the prompt is not repeated")
    if fields.present("logprobs"):
        raise fields.wrong("logprobs", "no value: log probabilities are not offered")
    if fields.present("logit_bias") and fields.raw("logit_bias") != {}:
        raise fields.wrong("logit_bias", "no value: token biases are not offered")


def _read(fields: Fields) -> Asked:
    prompt = _read_prompt(fields)
    suffix = fields.optional_text("suffix")
    segments: tuple[Segment, ...]
    if suffix is None:
        segments = (Segment("text", prompt, "prompt"),)
    else:
        segments = (Segment("suffix", suffix, "suffix"), Segment("prefix", prompt, "prompt"))
    return Asked(
        route="plain" if suffix is None else "fim",
        segments=segments,
        max_tokens=fields.integer("max_tokens", DEFAULT_MAX_TOKENS, 1, MAX_TOKENS),
        sampling=read_sampling(fields, temperature=DEFAULT_TEMPERATURE),
        stop=_read_stops(fields),
        prediction=read_prediction(fields),
    )


def _read_prompt(fields: Fields) -> str:
    value = fields.raw("prompt")
    if isinstance(value, list):
        if len(value) != 1 or not isinstance(value[0], str):
            raise fields.wrong("prompt", "one string, alone or in an array (several, or token ids, are not taken)")
        return fields.strings("prompt", 1)[0]
    return fields.text("prompt")


def _read_stops(fields: Fields) -> StopStrings | None:
    strings = fields.strings("stop", MAX_STOP_STRINGS)
    if not all(strings):
        raise bad_request("stop: a stop string must not be empty", "stop")
    return StopStrings(strings) if strings else None


async def _whole(call: _Call, running: Running) -> Response:
    text = ""
    async for event in running.events():
        if isinstance(event, FinishedEvent):
            finished = event
        elif isinstance(event, TextEvent):
            text += event.text
    if (error := _failure(finished)) is not None:
        return error.response()
    return AsciiJson({**call.chunk(text, _finish_reason(finished)), **_figures(finished)})


async def _server_sent_events(call: _Call, running: Running) -> AsyncGenerator[bytes]:
    async for event in running.events():
        if isinstance(event, FinishedEvent):
            finished = event
        elif isinstance(event, TextEvent):
            yield _event(call.chunk(event.text, None))
    if (error := _failure(finished)) is not None:
        yield _event(error.to_json())
    else:
        last = {**call.chunk("", _finish_reason(finished)), **_figures(finished)}
        if call.include_usage:
            counted = last.pop("usage")
            yield _event(last)
            yield _event({**call.envelope([]), "usage": counted})
        else:
            yield _event(last)
    yield b"data: [DONE]\n\n"


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n\n"


def _failure(finished: FinishedEvent) -> ApiError | None:
    if finished.reason == "error":
        return ApiError(500, "generation_failed", finished.detail or "the generation failed")
    if finished.reason == "cancelled":
        return ApiError(503, "stopping", "the engine stopped before the answer was complete")
    return None


def _finish_reason(finished: FinishedEvent) -> str:
    """In the OpenAI API's words; an answer that failed has none."""
    return "length" if finished.reason == "length" else "stop"


def _figures(finished: FinishedEvent) -> dict[str, Any]:
    return {
        "usage": usage(finished.counters),
        "draftline": {"reason": finished.reason, **asdict(finished.counters)},
    }


def usage(counters: Counters) -> dict[str, Any]:
    """Token counts as the OpenAI API names them."""
    return {
        "prompt_tokens": counters.prompt_tokens,
        "completion_tokens": counters.generated,
        "total_tokens": counters.prompt_tokens + counters.generated,
        "prompt_tokens_details": {"cached_tokens": counters.reused},
        "completion_tokens_details": {
            "accepted_prediction_tokens": counters.accepted,
            "rejected_prediction_tokens": counters.drafted - counters.accepted,
        },
    }
