"""What follows an item is computed before it is accepted, when nobody asks for anything else."""

import asyncio

import pytest

import lsp.ahead
from lsp.ahead import request_after
from lsp.completer import Completer
from lsp.documents import Change, DocumentStore
from lsp.engine import EngineLink
from lsp.items import Item
from lsp.settings import Settings
from lsp.workspace import Workspace
from prompts.segments import Segment
from server.request import Counters
from server.wire import CompletionFinished, CompletionRequest, CompletionText, Health

URI = "untitled:1"


class Engine:
    """Answers with what ``texts`` has for the last line before the cursor; hangs where that is None."""

    def __init__(self, texts):
        self.texts = texts
        self.requests = []
        self.stopped = []

    async def complete(self, request):
        self.requests.append(request)
        line = "".join(s.text for s in request.segments if s.role == "prefix").rpartition("\n")[2]
        try:
            if (text := self.texts[line]) is None:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped.append(request)
            raise
        yield CompletionText(text)
        yield CompletionFinished("stop", Counters(prefilled=7))

    async def health(self):
        return Health("ready", "0", 1, "/m", "m", "", context_length=4096)

    async def aclose(self):
        pass


class Session:
    def __init__(self, completer, documents):
        self.completer = completer
        self.documents = documents
        self.version = 1

    async def ask(self, column, line=0):
        answer = await self.completer.answer(URI, line, column, typing=True)
        await asyncio.sleep(0.03)
        return answer.outcome

    def insert(self, text, column, line=0):
        self.version += 1
        self.documents.get(URI).apply([Change(text, (line, column), (line, column))], self.version, "utf-16")
        self.completer.changed(URI)


def run(texts, steps, text="x = ", **settings):
    async def main():
        engine, documents, ready = Engine(texts), DocumentStore(), asyncio.Event()

        async def connect():
            return engine

        link = EngineLink(connect, lambda state, *_: ready.set() if state == "ready" else None)
        link.start()
        await ready.wait()
        documents.open(URI, text, 1)
        completer = Completer(documents, Workspace(), link)
        completer.settings = Settings(debounce_ms=0, **settings)
        await steps(Session(completer, documents))
        completer.stop()
        await link.aclose()
        return engine

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(lsp.ahead, "PAUSE_S", 0.0)
    monkeypatch.setattr("lsp.completer.PAUSE_S", 0.0)


def priorities(engine):
    return [request.priority for request in engine.requests]


def test_u17_after_an_item_was_accepted_the_next_one_is_there():
    async def steps(session):
        await session.ask(4)
        session.insert("f(a)", 4)
        outcome = await session.ask(8)
        assert (outcome.text, outcome.cached, outcome.prefetched, outcome.counters.prefilled) == (" + g", True, True, 0)
        session.insert(" + g", 8)
        assert (await session.ask(12)).text == "(b)"

    engine = run({"x = ": "f(a)", "x = f(a)": " + g", "x = f(a) + g": "(b)", "x = f(a) + g(b)": ""}, steps)
    assert priorities(engine) == ["completion", *["background"] * 3]


def test_u17_that_nothing_follows_is_known_too():
    async def steps(session):
        await session.ask(4)
        session.insert("f(a)", 4)
        outcome = await session.ask(8)
        assert (outcome.reason, outcome.cached, outcome.prefetched) == ("empty", True, True)
        session.insert("!", 8)
        assert (await session.ask(9)).reason == "empty"

    engine = run({"x = ": "f(a)", "x = f(a)": "", "x = f(a)!": ""}, steps)
    assert priorities(engine) == ["completion", "background", "completion"]


def test_u17_typing_along_asks_for_nothing_new_and_leaves_the_prefetch_alone():
    async def steps(session):
        await session.ask(4)
        session.insert("f(", 4)
        assert (await session.ask(6)).text == "a)"

    engine = run({"x = ": "f(a)", "x = f(a)": None}, steps)
    assert priorities(engine) == ["completion", "background"]
    assert engine.stopped == engine.requests[1:]  # at the end only


def test_u17_a_real_request_stops_the_prefetch():
    async def steps(session):
        await session.ask(4)
        session.insert("other", 4)
        assert (await session.ask(9)).reason == "empty"
        assert [request.priority for request in session.completer._link.engine().stopped] == ["background"]

    engine = run({"x = ": "f(a)", "x = f(a)": None, "x = other": ""}, steps)
    assert priorities(engine) == ["completion", "background", "completion"]


def test_u17_the_end_of_the_document_stops_the_prefetch():
    async def steps(session):
        await session.ask(4)
        session.documents.close(URI)
        session.completer.changed(URI)
        await asyncio.sleep(0.01)
        assert len(session.completer._link.engine().stopped) == 1

    run({"x = ": "f(a)", "x = f(a)": None}, steps)


def test_u17_the_prefetch_can_be_switched_off():
    async def steps(session):
        await session.ask(4)

    assert priorities(run({"x = ": "f(a)"}, steps, prefetch=False)) == ["completion"]


def test_u17_a_prefetch_is_laid_out_as_the_real_request_will_be():
    async def steps(session):
        session.completer.settings = Settings(debounce_ms=0, prefetch=True)
        await session.ask(4, 30)
        session.insert("f(\n    a)", 4, 30)
        session.completer.forget()
        await session.ask(6, 31)

    engine = run({"x = ": "f(\n    a)", "    a)": ""}, steps, text="above = 1\n" * 30 + "x = \nbelow = 2\n")
    assert priorities(engine) == ["completion", "background", "completion"]
    assert engine.requests[1].segments == engine.requests[2].segments
    assert engine.requests[1].stop == engine.requests[2].stop


def test_what_an_accepted_item_replaces_is_not_in_the_next_request():
    segments = (Segment("suffix", ") + 1\n", "current"), Segment("prefix", "f(", "current"))
    request, prefix, suffix = request_after(CompletionRequest(segments), Item("a)", 1))
    assert (prefix, suffix) == ("f(a)", " + 1\n")
    assert [segment.text for segment in request.segments] == [" + 1\n", "f(a)"]
