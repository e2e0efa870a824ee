"""What the link to the engine makes of errors that only its event loop sees."""

import asyncio
import logging

from lsp.engine import EngineLink


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
