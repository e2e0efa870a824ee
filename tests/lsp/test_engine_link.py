"""The hold on the engine: how often it is tried again when it can't be started, or dies as soon as it runs."""

import asyncio

import pytest

from lsp.engine import FIRST_PAUSE_S, LONGEST_PAUSE_S, EngineLink
from server.client import EngineUnavailable
from server.wire import Health

TRIES = 12


class Connection:
    async def health(self):
        return Health("ready", "0", 1, "/m", "m", "", 0)

    async def aclose(self):
        pass


def refused():
    raise EngineUnavailable("no")


@pytest.mark.parametrize("connect", [refused, Connection], ids=["can't be started", "dies at once"])
def test_u45_pauses_between_tries_grow_up_to_a_limit(monkeypatch, connect):
    pauses = []
    sleep = asyncio.sleep

    async def recorded(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", recorded)

    async def main():
        enough = asyncio.Event()

        async def counted():
            if len(pauses) >= TRIES:
                enough.set()
            return connect()

        def on_state(state, message, health):
            if state == "ready":
                asyncio.get_running_loop().call_soon(lambda: link.lost(link.engine()))

        link = EngineLink(counted, on_state)
        link.start()
        async with asyncio.timeout(60):
            await enough.wait()
        await link.aclose()

    asyncio.run(main())
    expected = [min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) for number in range(TRIES)]
    assert pauses[:TRIES] == expected
    assert expected[-1] == LONGEST_PAUSE_S
