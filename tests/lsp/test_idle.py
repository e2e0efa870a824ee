"""What the language server does while nobody asks: it lays the prompt out anew and has the engine compute it."""

import asyncio
from pathlib import Path

import pytest

import lsp.idle
from lsp.completer import Completer
from lsp.documents import DocumentStore
from lsp.engine import EngineLink
from lsp.settings import Settings
from lsp.workspace import Workspace
from server.request import Counters
from server.wire import CompletionFinished, CompletionText, Health

A, B, C = (f"file:///w/shop/{name}.py" for name in "abc")


class Engine:
    def __init__(self):
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        yield CompletionText("value")
        yield CompletionFinished("stop", Counters())

    async def health(self):
        return Health("ready", "0", 1, "/m", "m", "", context_length=4096)

    async def aclose(self):
        pass

    def paths(self, index):
        return [segment.path for segment in self.requests[index].segments if segment.role == "file"]


def session(steps):
    """The requests an engine gets when ``steps(completer, documents)`` is done in a workspace with a large file."""

    async def main():
        engine, documents, ready = Engine(), DocumentStore(), asyncio.Event()

        async def connect():
            return engine

        link = EngineLink(connect, lambda state, *_: ready.set() if state == "ready" else None)
        link.start()
        await ready.wait()
        documents.open(B, "b = 1\n" * 3000, 1)
        documents.open(A, "x = ", 1)
        completer = Completer(documents, Workspace([Path("/w/shop")]), link)
        completer.settings = Settings(debounce_ms=0, alternatives=1, prefetch=False)
        await completer.answer(A, 0, 4, typing=False)
        documents.open(C, "c = 1\n" * 400, 1)
        documents.focus(A)
        await steps(completer, documents)
        completer.idle.stop()
        await link.aclose()
        return engine

    return asyncio.run(main())


@pytest.fixture
def short_pause(monkeypatch):
    monkeypatch.setattr(lsp.idle, "PAUSE_S", 0.01)


def test_a_file_that_found_no_room_is_in_the_prompt_after_a_pause(short_pause):
    async def steps(completer, documents):
        await completer.answer(A, 0, 3, typing=False)
        await asyncio.sleep(0.1)
        await completer.answer(A, 0, 2, typing=False)
        await asyncio.sleep(0.1)

    engine = session(steps)
    assert [request.priority for request in engine.requests] == ["completion", "completion", "background", "completion"]
    assert engine.requests[2].max_tokens == 1
    assert [engine.paths(index) for index in range(4)] == [["b.py"], ["b.py"], ["b.py", "c.py"], ["b.py", "c.py"]]


def test_an_item_on_the_screen_is_good_after_a_pause(short_pause):
    async def steps(completer, documents):
        await completer.answer(A, 0, 3, typing=False)
        await asyncio.sleep(0.1)
        answer = await completer.answer(A, 0, 3, typing=False)
        assert answer.outcome.cached

    assert len(session(steps).requests) == 3


@pytest.mark.parametrize("how", ["ask", "close", "out of sync"])
def test_a_request_or_the_end_of_the_document_takes_the_rebuild_back(monkeypatch, how):
    monkeypatch.setattr(lsp.idle, "PAUSE_S", 0.1)

    async def steps(completer, documents):
        await completer.answer(A, 0, 3, typing=False)
        if how == "close":
            documents.close(A)
        elif how == "out of sync":
            documents.get(A).in_sync = False
        for column in (2, 1, 2, 1, 2):
            if how == "ask":
                await completer.answer(A, 0, column, typing=False)
            await asyncio.sleep(0.04)

    assert {request.priority for request in session(steps).requests} == {"completion"}
