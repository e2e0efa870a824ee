"""Ends this user's engine: asks it, and kills it when it does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import httpx

from server.process.last_model import forget_last
from server.process.lock import lock_holder
from server.process.places import Places, find_places
from server.process.probe import open_http

ANSWER_S = 3.0
ASKED_S = 10.0
"""How long an engine may take to end after it was asked."""
TERMINATED_S = 3.0


async def stop_engine() -> int | None:
    """Process id of the engine that was ended and is gone; None when none was running. What ran last is forgotten.

    Raises RuntimeDirectoryError.
    """
    places = find_places()
    try:
        return await _stop_engine(places)
    finally:
        if lock_holder(places.lock) is None:
            forget_last(places)


async def _stop_engine(places: Places) -> int | None:
    pid = lock_holder(places.lock)
    if pid is None:
        return None
    asked = False
    with contextlib.suppress(httpx.HTTPError):
        async with open_http(places.socket) as http:
            asked = (await http.post("/draftline/v1/stop", json={"when": "now"}, timeout=ANSWER_S)).is_success
    if asked and await _gone(pid, ASKED_S):
        return pid
    for number, patience in ((signal.SIGTERM, TERMINATED_S), (signal.SIGKILL, TERMINATED_S)):
        # The lock is its own: as long as that process holds it, the number can't stand for another one.
        if lock_holder(places.lock) == pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if await _gone(pid, patience):
            break
    return pid


async def _gone(pid: int, patience_s: float) -> bool:
    places = find_places()
    give_up = time.monotonic() + patience_s
    while lock_holder(places.lock) == pid:
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(0.02)
    return True
