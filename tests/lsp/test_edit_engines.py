"""Edits with engines that can't chat, that die, and with an editor that shows edits itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edits import TEXT, actions, edit
from fake_engine import FakeEngine, Request, Script, script
from language_server import root_of

from bench.lsp_client import LspClient


def test_a_dead_engine_is_an_error_in_words(own_server: Callable[..., LspClient], folder: Path, uri: str) -> None:
    engine = FakeEngine(folder / "run", answer=lambda request: Script(die=True), chat=True)
    client = own_server()
    client.initialize(root=root_of(folder))
    client.wait_ready()
    client.open(uri, TEXT)
    answer = edit(client, uri, (4, 0), (4, 4), "change it")
    assert answer["reason"] == "error"
    assert "engine" in answer["detail"]
    engine.close()


def test_a_model_that_can_not_chat_edits_by_filling_in_and_answers_no_questions(
    own_server: Callable[..., LspClient], folder: Path, uri: str
) -> None:
    def answer(request: Request) -> Script:
        return script("    return w\n", reason="end")

    engine = FakeEngine(folder / "run", answer=answer)
    client = own_server()
    client.initialize(root=root_of(folder))
    client.wait_ready()
    client.open(uri, TEXT)
    found = edit(client, uri, (4, 0), (4, 4), "only w")
    assert found["hunks"] == [{"start": 4, "end": 5, "lines": ["    return w"]}]
    (request,) = engine.requests
    assert (request["route"], request["prediction"]) == ("fim", "    return w * h\n")
    assert request["segments"][-1]["text"].endswith("    # only w\n")
    refused = edit(client, uri, (4, 0), (4, 4), kind="explain")
    assert refused["reason"] == "refused"
    assert "chat" in refused["detail"]
    engine.close()


def test_an_editor_that_shows_edits_gets_them_all_to_itself(
    own_server: Callable[..., LspClient], folder: Path, uri: str
) -> None:
    engine = FakeEngine(folder / "run", chat=True)
    client = own_server()
    client.initialize(root=root_of(folder), capabilities={"experimental": {"draftline": {"edits": True}}})
    client.wait_ready()
    client.open(uri, TEXT, version=3)
    found = actions(client, uri, (4, 0), (4, 4))
    assert {a["command"]["command"] for a in found} == {"draftline.ui.edit"}
    assert [a["command"]["arguments"][0]["kind"] for a in found] == ["edit", "docstring", "tests", "explain"]
    assert found[0]["command"]["arguments"][0]["textDocument"] == {"uri": uri, "version": 3}
    engine.close()
