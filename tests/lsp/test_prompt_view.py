"""``draftline/prompt``: what people are shown is what the engine gets."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import FakeEngine

from bench.lsp_client import LspClient


def ask(editor: LspClient, uri: str, line: int, character: int) -> dict[str, Any]:
    params = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
    result: dict[str, Any] = editor.request("draftline/prompt", params)
    return result


def test_u19_the_prompt_that_is_shown_is_the_one_that_the_engine_gets(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    other = uri.replace("/file", "/other")
    editor.open(other, "def helper(a, b):\n    return a\n")
    editor.open(uri, "from other import helper\n\nx = \ny = 2\n")
    shown = ask(editor, uri, 2, 4)
    assert engine.requests == []
    editor.inline(uri, 2, 4)
    (request,) = engine.requests
    told = [(part["role"], part["path"], part["text"]) for part in shown["segments"]]
    assert told == [(part["role"], part.get("path"), part["text"]) for part in request["segments"]]
    assert shown["version"] == 1
    assert shown["max_tokens"] == request["max_tokens"]
    assert any("helper" in part["text"] and part["source"] == "open file" for part in shown["segments"])
    assert shown["segments"][-1]["source"] == "current"


def test_where_no_engine_would_be_asked_the_reason_is_told(editor: LspClient, uri: str) -> None:
    assert ask(editor, uri, 0, 0)["reason"] == "excluded"
    secret = uri.rpartition("/")[0] + "/.env"
    editor.open(secret, "TOKEN=canary\n")
    answer = ask(editor, secret, 0, 0)
    assert answer["reason"] == "excluded"
    assert "canary" not in str(answer)
    editor.open(uri, "\n\n")
    assert ask(editor, uri, 0, 0)["reason"] == "blank"


@pytest.mark.parametrize(
    "params", [{}, {"textDocument": {"uri": "file:///a"}, "position": {"line": "1", "character": 0}}]
)
def test_parameters_of_a_wrong_kind_are_refused(editor: LspClient, params: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="draftline/prompt needs"):
        editor.request("draftline/prompt", params)
