"""What the link to the engine makes of errors that only its event loop sees."""

import asyncio
import logging

from lsp.engine import EngineLink
from server.client import EngineUnavailable


def test_a_read_that_was_cancelled_as_its_data_came_is_no_error_and_others_are(caplog):
    async def never():
        await asyncio.Event().wait()

    def fail():
        raise ZeroDivisionError

    async def main():
        link = EngineLink(never, lambda *state: None)
        link.start()
        loop = asyncio.get_running_loop()
        read = loop.create_future()
        loop.call_soon(read.set_result, None)
        read.cancel()
        loop.call_soon(fail)
        await asyncio.sleep(0)
        await link.aclose()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


def test_a_connection_whose_engine_does_not_tell_its_health_is_closed_before_the_next_try():
    connections = []
    asked = asyncio.Event()

    class Mute:
        def __init__(self, hangs):
            self.hangs = hangs
            self.closed = False

        async def health(self):
            if self.hangs:
                asked.set()
                await asyncio.Event().wait()
            raise EngineUnavailable("it does not answer")

        async def aclose(self):
            self.closed = True

    async def connect():
        assert all(connection.closed for connection in connections)
        connections.append(Mute(hangs=len(connections) == 1))
        return connections[-1]

    async def main():
        link = EngineLink(connect, lambda *state: None)
        link.start()
        await asyncio.wait_for(asked.wait(), 10)
        await link.aclose()

    asyncio.run(main())
    assert [connection.closed for connection in connections] == [True, True]
