"""Keeps programs that hold on to loopback connections from taking every file descriptor of the engine process.

The Unix socket belongs to the user alone; loopback is open to every user of the machine, and to every script that
forgets to close what it opened. Without a descriptor left, the user's own editor would find nobody at home.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_LOOPBACK = 200
"""Connections; a descriptor each. Systems give a process 256 at the least."""
_BODY = json.dumps(
    {
        "error": {
            "message": f"{MOST_LOOPBACK} requests are at work; ask again in a moment",
            "type": "unavailable_error",
            "param": None,
            "code": "too_many_connections",
        }
    }
).encode("ascii")
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
"""What a connection is told that has not been answered yet. Nobody waits for what it asks: that takes a descriptor."""


class LimitedProtocol(H11Protocol):
    """One connection. One too many on loopback closes the oldest that is idle, or is refused when none is."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made = asyncio.get_running_loop().time()
        if not self._by_loopback():
            return
        others = [c for c in self.connections if isinstance(c, LimitedProtocol) and c is not self and c._by_loopback()]
        if len(others) >= MOST_LOOPBACK:
            idle = [c for c in others if c.cycle is None or c.cycle.response_complete]
            oldest = min(idle, key=lambda c: c._made, default=self)
            self.connections.discard(oldest)  # at once: the next one may come before this one is gone
            if oldest.cycle is None:
                oldest.transport.write(BUSY)
            oldest.transport.close()

    def _by_loopback(self) -> bool:
        # The address of a Unix socket is a path.
        return isinstance(self.transport.get_extra_info("sockname"), tuple)
