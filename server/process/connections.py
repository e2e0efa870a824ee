"""Keeps programs that hold on to loopback connections from taking every file descriptor of the engine process.

The Unix socket belongs to the user alone; loopback is open to every user of the machine, and to every script that
forgets to close what it opened. Without a descriptor left, the user's own editor would find nobody at home.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_LOOPBACK = 200
"""Connections; a descriptor each. Systems give a process 256 at the least."""


class LimitedProtocol(H11Protocol):
    """One connection. One too many on loopback closes the oldest that is idle, or itself when none is."""

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
            oldest.transport.abort()

    def _by_loopback(self) -> bool:
        # The address of a Unix socket is a path.
        return isinstance(self.transport.get_extra_info("sockname"), tuple)
