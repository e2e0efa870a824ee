"""One running and one waiting completion for each document."""

import asyncio

import pytest

from lsp.lanes import Lane, Superseded


class Work:
    """Jobs that end when told to, and note what became of them."""

    def __init__(self):
        self.running = []
        self.cancelled = []
        self.gates = {}

    def job(self, name, *, slow_cancel=0.0):
        async def work():
            self.running.append(name)
            try:
                await self.gates.setdefault(name, asyncio.Event()).wait()
            except asyncio.CancelledError:
                await asyncio.sleep(slow_cancel)
                self.cancelled.append(name)
                raise
            return name

        return work

    def finish(self, name):
        self.gates.setdefault(name, asyncio.Event()).set()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_newer_request_replaces_what_runs_and_what_waits():
    async def main():
        lane, work = Lane(), Work()
        tasks = []
        for name in "abcd":
            tasks.append(asyncio.create_task(lane.request(name, work.job(name, slow_cancel=0.05))))
            await settle()
        # a is still being cancelled, yet all who asked before d have their answer already.
        assert [type(task.exception()) for task in tasks[:3]] == [Superseded] * 3
        assert work.running == ["a"]
        work.finish("d")
        assert await tasks[3] == "d"
        assert work.running == ["a", "d"]
        assert work.cancelled == ["a"]
        await settle()
        assert lane.idle

    asyncio.run(main())


def test_requests_for_the_same_place_share_one_job():
    async def main():
        lane, work = Lane(), Work()
        first = asyncio.create_task(lane.request("a", work.job("a")))
        second = asyncio.create_task(lane.request("a", work.job("never")))
        await settle()
        first.cancel()
        await settle()
        assert work.cancelled == []
        work.finish("a")
        assert await second == "a"
        assert work.running == ["a"]

    asyncio.run(main())


def test_cancelling_the_last_request_cancels_the_job():
    async def main():
        lane, work = Lane(), Work()
        task = asyncio.create_task(lane.request("a", work.job("a")))
        await settle()
        task.cancel()
        await settle()
        assert task.cancelled()
        assert work.cancelled == ["a"]
        assert lane.idle

    asyncio.run(main())


def test_a_waiting_request_that_is_cancelled_never_runs():
    async def main():
        lane, work = Lane(), Work()
        first = asyncio.create_task(lane.request("a", work.job("a", slow_cancel=0.05)))
        await settle()
        second = asyncio.create_task(lane.request("b", work.job("b")))
        await settle()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert work.running == ["a"]
        assert lane.idle

    asyncio.run(main())


def test_an_error_reaches_the_request_and_the_lane_goes_on():
    async def main():
        lane, work = Lane(), Work()

        async def fail():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await lane.request("a", fail)
        work.finish("b")
        assert await lane.request("b", work.job("b")) == "b"

    asyncio.run(main())
