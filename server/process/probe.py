"""Asks whoever listens on the engine's socket how it is."""

from __future__ import annotations

from pathlib import Path

import httpx

from server.wire import Health

PROBE_TIMEOUT_S = 5.0


class NoAnswer(Exception):  # noqa: N818
    """Somebody listens on the socket and does not answer in time."""


def open_http(socket: Path) -> httpx.AsyncClient:
    """An HTTP client that can only reach this socket: no proxy, no TLS, nothing from the environment."""
    transport = httpx.AsyncHTTPTransport(
        uds=str(socket),
        trust_env=False,
        verify=False,
        # A kept connection tells the engine that this client is still there.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=2, keepalive_expiry=None),
    )
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False)


async def ask_health(http: httpx.AsyncClient) -> Health | None:
    """The engine's health; None when nobody listens, or it ends while asked. Raises NoAnswer."""
    try:
        response = await http.get("/health", timeout=PROBE_TIMEOUT_S)
        return Health.from_json(response.json())
    except httpx.TimeoutException as error:
        raise NoAnswer from error
    except (httpx.TransportError, ValueError, TypeError):
        return None


async def probe(socket: Path) -> Health | None:
    """``ask_health`` over a connection of its own."""
    async with open_http(socket) as http:
        return await ask_health(http)
