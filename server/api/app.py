"""The HTTP application: which route leads where, and that every refusal is JSON."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from server.api import completions, native
from server.api.ascii_json import AsciiJson
from server.api.errors import ApiError
from server.api.guard import LoopbackOnly
from server.api.host import EngineHost

OFFERED = "GET /health, GET /v1/models and POST /v1/completions"
"""For people; Draftline's own clients know the rest."""

log = logging.getLogger("draftline.engine")


def create_app(host: EngineHost) -> Starlette:
    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/v1/completions", completions.completions, methods=["POST"]),
            Route("/draftline/v1/complete", native.complete, methods=["POST"]),
            Route("/draftline/v1/stop", native.stop, methods=["POST"]),
        ],
        middleware=[Middleware(LoopbackOnly)],
        exception_handlers={
            ApiError: _refused,
            ClientDisconnect: _gone,
            HTTPException: _no_such_route,
            Exception: _broken,
        },
    )
    app.state.host = host
    return app


async def health(request: Request) -> Response:
    """``GET /health``: 200 when a completion would be taken, 503 while loading or stopping. Never touches the model."""
    host: EngineHost = request.app.state.host
    return AsciiJson(host.health().to_json(), status_code=200 if host.status == "ready" else 503)


async def models(request: Request) -> Response:
    """``GET /v1/models``: the one model this process holds."""
    return AsciiJson({"object": "list", "data": [_model(request.app.state.host)]})


async def model(request: Request) -> Response:
    """``GET /v1/models/NAME``"""
    host: EngineHost = request.app.state.host
    completions.check_model(host, request.path_params["name"])
    return AsciiJson(_model(host))


def _model(host: EngineHost) -> dict[str, object]:
    return {
        "id": host.model_id,
        "object": "model",
        "created": int(host.model.stat().st_mtime) if host.model.exists() else 0,
        "owned_by": "draftline",
        "context_length": host.health().context_length,
    }


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    # A path is the client's choice: as a literal it can't begin a line of its own.
    log.info("refused path=%r status=%d code=%s param=%s", request.url.path, error.status, error.code, error.param)
    return error.response()


async def _gone(request: Request, error: Exception) -> Response:
    """The client left before its request was complete, which is its good right: nobody reads this answer."""
    return Response(status_code=499)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        text = f"{request.url.path} does not take {request.method}; use {allowed}"
        refusal = ApiError(405, "method_not_allowed", text)
    else:
        text = f"there is no {request.method} {request.url.path} here; there are {OFFERED}"
        if "chat" in request.url.path:
            text += "; chat is not offered yet"
        refusal = ApiError(error.status_code, "no_such_route", text)
    return refusal.response()


async def _broken(request: Request, error: Exception) -> Response:
    return ApiError(500, "internal_error", f"internal error ({type(error).__name__}); see the engine's log").response()
