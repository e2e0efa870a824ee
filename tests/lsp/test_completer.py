"""The way of one request inside the language server, with an engine that is a few lines long."""

import asyncio

import pytest

from lsp.completer import Completer
from lsp.documents import Change, DocumentStore
from lsp.engine import EngineLink
from lsp.settings import Settings
from lsp.workspace import Workspace
from server.client import EngineUnavailable
from server.request import Counters
from server.wire import CompletionFinished, CompletionText, Health

HEALTH = Health("ready", "0", 1, "/m", "m", "", context_length=4096)
URI = "untitled:1"


class Engine:
    """Calls ``during`` in the middle of each answer."""

    dead = False

    def __init__(self, during):
        self.during = during

    async def complete(self, request):
        yield CompletionText("value")
        self.during()
        yield CompletionFinished("stop", Counters())

    async def health(self):
        if self.dead:
            raise EngineUnavailable("no answer")
        return HEALTH

    async def aclose(self):
        pass


class SilentEngine(Engine):
    async def complete(self, request):
        self.dead = True
        await asyncio.Event().wait()
        yield


def answer_of(during, kind=Engine):
    """The answer to a request for a document, and whether the engine was still held afterwards."""

    async def main():
        documents = DocumentStore()
        states = []
        ready = asyncio.Event()

        async def connect():
            return kind(lambda: during(documents))

        def on_state(state, message, health):
            states.append(state)
            ready.set() if state == "ready" else None

        link = EngineLink(connect, on_state)
        link.start()
        await ready.wait()
        documents.open(URI, "x = ", 1)
        completer = Completer(documents, Workspace(), link)
        completer.settings = Settings(timeout_ms=50)
        answer = await completer.answer(URI, 0, 4, typing=False)
        await asyncio.sleep(0)
        await link.aclose()
        return answer, states

    return asyncio.run(main())


def change(documents):
    documents.get(URI).apply([Change("y", (0, 0), (0, 0))], 2, "utf-16")


def reopen(documents):
    documents.open(URI, "another text", 1)


def test_an_answer_for_an_unchanged_document_is_shown():
    answer, _ = answer_of(lambda documents: None)
    assert (answer.outcome.reason, answer.outcome.text, answer.version) == ("shown", "value", 1)


@pytest.mark.parametrize("during", [change, reopen, lambda documents: documents.close(URI)])
def test_u29_an_answer_that_comes_as_the_document_changes_is_dropped(during):
    answer, _ = answer_of(during)
    assert (answer.outcome.reason, answer.outcome.text) == ("cancelled", "")


def test_u45_an_engine_that_dies_is_an_error_and_looked_for_again():
    def die(documents):
        raise EngineUnavailable("it ended")

    answer, states = answer_of(die)
    assert (answer.outcome.reason, answer.outcome.detail) == ("error", "it ended")
    assert states == ["loading", "ready", "loading"]


def test_an_engine_that_says_nothing_at_all_is_a_timeout_and_counts_as_lost():
    answer, states = answer_of(lambda documents: None, SilentEngine)
    assert answer.outcome.reason == "timeout"
    assert states == ["loading", "ready", "loading"]
