"""Keeps web pages away from the engine: which Host and Origin are answered.

A page of any site can make the browser send requests to a loopback port. With DNS rebinding the page's own name
points here, which the Host header gives away; without it, the Origin header does. Neither stands for a Unix socket.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.errors import ApiError
from server.loopback import is_loopback


def _hostname(authority: str) -> str | None:
    try:
        return urlsplit(f"//{authority}").hostname
    except ValueError:
        return None


def _is_loopback_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.hostname is not None and is_loopback(parts.hostname)
    except ValueError:
        return False


def came_by_socket(scope: Scope) -> bool:
    """Whether the request came over the Unix socket, whose server address has no port."""
    server = scope.get("server")
    return server is not None and server[1] is None


class LoopbackOnly:
    """ASGI middleware that answers 403 to a Host or Origin that isn't this machine's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _refusal(scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if not came_by_socket(scope):
            hosts = headers.getlist("host")
            name = _hostname(hosts[0]) if len(hosts) == 1 else None
            if name is None or not is_loopback(name):
                return ApiError(
                    403,
                    "host_refused",
                    "this server answers only to localhost; its Host header named another host",
                )
        for origin in headers.getlist("origin"):
            if not _is_loopback_origin(origin):
                return ApiError(
                    403,
                    "origin_refused",
                    "this server answers only to pages of this machine, not of another Origin",
                )
        return None
