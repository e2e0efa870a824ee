"""Edits through the real language server: what reaches the document, and what never does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edits import TEXT, actions, edit, fenced, params
from fake_engine import FakeEngine, Script, script
from language_server import root_of, start_server

from bench.lsp_client import LspClient, LspError


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[tuple[LspClient, FakeEngine]]:
    engine = FakeEngine(folder / "run", chat=True)
    with start_server(folder) as client:
        client.initialize(root=root_of(folder), settings={"prefetch": False})
        client.wait_ready()
        yield client, engine
    engine.close()


def after(text: str, edits: list[dict[str, Any]]) -> str:
    """The document with the edits applied, as an editor does it: positions in UTF-16."""
    ends = [line.encode("utf-16-le") for line in text.split("\n")]
    starts = [0]
    for line in ends:
        starts.append(starts[-1] + len(line) + 2)
    data = text.encode("utf-16-le")

    def place(at: dict[str, int]) -> int:
        return starts[at["line"]] + 2 * at["character"]

    for one in sorted(edits, key=lambda e: place(e["range"]["start"]), reverse=True):
        begin, end = place(one["range"]["start"]), place(one["range"]["end"])
        data = data[:begin] + one["newText"].encode("utf-16-le") + data[end:]
    return data.decode("utf-16-le")


def test_an_edit_is_asked_with_the_old_text_and_comes_back_in_hunks(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    engine.answer = lambda request: script("Here:\n" + fenced("def area(width, height):", "    return width * height"))
    editor.open(uri, TEXT)
    answer = edit(editor, uri, (3, 4), (4, 3), "better names", version=1)
    assert (answer["reason"], answer["version"], answer["lines"]) == ("ready", 1, {"start": 3, "end": 5})
    assert after(TEXT, answer["edits"]) == TEXT.replace("w, h", "width, height").replace("w * h", "width * height")
    (hunk,) = answer["hunks"]
    assert (hunk["start"], hunk["end"], len(hunk["lines"])) == (3, 5, 2)
    (request,) = engine.requests
    assert (request["route"], request["priority"]) == ("chat", "edit")
    assert request["prediction"] == "```python\ndef area(w, h):\n    return w * h\n```"
    assert request["segments"][-1]["text"].endswith("better names\n")
    assert answer["figures"]["generated"] == 9


def test_hunks_are_streamed_as_they_get_certain(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    pieces = ["```python\na = 1", "\nB = 2\n", "c = 3\n", "d = 4\nE = 5\n", "```\n"]
    engine.answer = lambda request: Script(pieces=pieces, pause=0.05)
    editor.open(uri, "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n")
    begin = len(editor.messages)
    answer = edit(editor, uri, (0, 0), (5, 0), "capitals", partialResultToken="t1")
    sent = [m["value"]["hunks"] for _, m in editor.sent("$/progress", begin) if m["token"] == "t1"]
    first = {"start": 1, "end": 2, "lines": ["B = 2"]}
    last = {"start": 4, "end": 5, "lines": ["E = 5"]}
    assert [] not in sent[-2:]
    assert sent[-1] == answer["hunks"] == [first, last]
    assert [first] in sent


@pytest.mark.parametrize(
    ("text", "lines", "new"),
    [
        ("a = 1\r\nb = 2\r\n", (1, 2), ["b = 3", "c = 4"]),
        ("a = 1\nb = 2", (1, 2), ["b = 3", "c = 4"]),
        ("a = 1\nb = 2", (0, 2), ["a = 2"]),
        ("a = '😀' + '𝒳'\nb = 2", (0, 1), ["a = '𝒳'", "x = 1"]),
        ("b = '😀'", (0, 1), ["c = '😀😀'"]),
        ("a = 1\n\nb = 2\n", (1, 2), ["x = 1"]),
    ],
)
def test_what_stands_around_the_lines_stays_and_line_ends_are_the_documents(
    editor: LspClient, engine: FakeEngine, uri: str, text: str, lines: tuple[int, int], new: list[str]
) -> None:
    engine.answer = lambda request: script(fenced(*new))
    editor.open(uri, text)
    end = "\r\n" if "\r\n" in text else "\n"
    old = text.split(end)
    expected = end.join([*old[: lines[0]], *new, *old[lines[1] :]])
    answer = edit(editor, uri, (lines[0], 0), (lines[1] - 1, 1), "do it")
    assert after(text.replace("\r\n", "\r\n"), answer["edits"]) == expected


def test_lines_are_deleted_at_the_end_of_a_document_without_a_line_end(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    engine.answer = lambda request: script(fenced("a = 1"))
    editor.open(uri, "a = 1\nb = 2\nc = 3")
    answer = edit(editor, uri, (0, 0), (2, 5), "only a")
    assert after("a = 1\nb = 2\nc = 3", answer["edits"]) == "a = 1"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([fenced("    return (w"), fenced("    return ((w")], "syntax error"),
        (["I can't do that.", "Still not."], "no code between fences"),
        (["```python\n    return 1\n", "```python\n    return 1\n"], "no code between fences"),
        ([fenced(), fenced("", "")], "the answer is empty"),
    ],
)
def test_an_answer_that_can_not_be_used_is_asked_for_once_more_and_then_refused(
    editor: LspClient, engine: FakeEngine, uri: str, answers: list[str], words: str
) -> None:
    replies = iter(answers)
    engine.answer = lambda request: script(next(replies), reason="end")
    editor.open(uri, TEXT)
    answer = edit(editor, uri, (4, 0), (4, 4), "change it")
    assert answer["reason"] == "refused"
    assert words in answer["detail"]
    assert answer["edits"] == []
    first, second = engine.requests
    assert first["sampling"]["temperature"] == 0
    assert second["sampling"]["temperature"] > 0
    assert first["segments"] == second["segments"]


def test_the_second_answer_is_taken_when_it_parses(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    replies = iter([fenced("    return (w"), fenced("    return (w)")])
    engine.answer = lambda request: script(next(replies))
    editor.open(uri, TEXT)
    answer = edit(editor, uri, (4, 0), (4, 4), "only w")
    assert answer["reason"] == "ready"
    assert answer["hunks"] == [{"start": 4, "end": 5, "lines": ["    return (w)"]}]


def test_an_answer_that_was_cut_off_is_refused_at_once(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    engine.answer = lambda request: script("```python\n    return 1\n", reason="length")
    editor.open(uri, TEXT)
    answer = edit(editor, uri, (4, 0), (4, 4), "change it")
    assert (answer["reason"], len(engine.requests)) == ("refused", 1)
    assert f"longer than the {engine.requests[0]['max_tokens']} tokens" in answer["detail"]


def test_an_answer_without_a_change_says_so(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    engine.answer = lambda request: script(fenced("return w * h"))
    editor.open(uri, TEXT)
    assert edit(editor, uri, (4, 0), (4, 4), "tidy up")["reason"] == "unchanged"


def test_more_lines_than_the_context_holds_are_refused_with_both_numbers(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    editor.open(uri, "value = 1\n" * 5000)
    answer = edit(editor, uri, (0, 0), (5000, 0), "change it")
    assert answer["reason"] == "refused"
    assert "tokens, and there is room for" in answer["detail"]
    assert engine.requests == []


def test_a_text_full_of_fences_is_edited_like_any_other(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    text = "# A\n\n```py\nx\n```\n"
    engine.answer = lambda request: script("````markdown\n```py\ny\n```\n````\n")
    editor.open(uri.replace(".py", ".md"), text, language="markdown")
    answer = edit(editor, uri.replace(".py", ".md"), (2, 0), (4, 3), "y")
    assert after(text, answer["edits"]) == "# A\n\n```py\ny\n```\n"


def test_a_newer_text_is_never_overwritten(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    engine.answer = lambda request: Script(pieces=["```python\n"], hang=True)
    editor.open(uri, TEXT)
    asked = editor.start("draftline/edit", params(uri, (4, 0), (4, 4), "change it", version=1))
    engine.wait_until(lambda: bool(engine.requests))
    editor.insert(uri, 2, 0, 0, "# new\n")
    answer = editor.result(asked)
    assert (answer["reason"], answer["edits"]) == ("stale", [])
    engine.wait_until(lambda: bool(engine.cancelled))
    assert edit(editor, uri, (4, 0), (4, 4), "change it", version=1)["reason"] == "stale"
    assert len(engine.requests) == 1


def test_a_newer_edit_takes_the_place_of_an_older_one_and_cancelling_stops_the_engine(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    engine.answer = lambda request: Script(hang=True)
    editor.open(uri, TEXT)
    first = editor.start("draftline/edit", params(uri, (4, 0), (4, 4), "first"))
    engine.wait_until(lambda: len(engine.requests) == 1)
    second = editor.start("draftline/edit", params(uri, (4, 0), (4, 4), "second"))
    assert editor.result(first)["reason"] == "cancelled"
    engine.wait_until(lambda: len(engine.requests) == 2)
    editor.cancel(second)
    with pytest.raises(LspError):
        editor.result(second)
    engine.wait_until(lambda: len(engine.cancelled) == 2)


def test_documents_that_are_not_edited(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    assert edit(editor, uri, (0, 0), (0, 1), "x")["reason"] == "excluded"
    secret = uri.rpartition("/")[0] + "/.env"
    editor.open(secret, "TOKEN=canary\n")
    assert edit(editor, secret, (0, 0), (0, 1), "x")["reason"] == "excluded"
    editor.open("output:log", TEXT)
    assert edit(editor, "output:log", (0, 0), (0, 1), "x")["reason"] == "read_only"
    editor.open(uri, TEXT)
    assert "instruction" in edit(editor, uri, (0, 0), (0, 1), "  ")["detail"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"textDocument": {"uri": 3}, "range": {}},
        {"textDocument": {"uri": "file:///a"}, "range": {"start": {"line": 0, "character": 0}}},
        params("file:///a", (0, 0), (0, 0), kind="sing"),
        params("file:///a", (0, 0), (0, 0)) | {"instruction": 7},
    ],
)
def test_parameters_of_a_wrong_kind_are_refused(editor: LspClient, bad: dict[str, Any]) -> None:
    with pytest.raises(LspError) as refused:
        editor.request("draftline/edit", bad)
    assert refused.value.code == -32602
    with pytest.raises(LspError, match=r"draftline\.fix") as refused:
        editor.request("workspace/executeCommand", {"command": "draftline.fix", "arguments": [{}, {}]})


# Editors that know nothing of ours


def apply_in(editor: LspClient, count: int, applied: bool = True) -> dict[str, Any]:
    """The server's request number `count` to apply an edit, answered as an editor does."""
    editor.wait_until(lambda: len(editor.sent("workspace/applyEdit")) > count, "workspace/applyEdit")
    message = [m for m in editor.messages if m.get("method") == "workspace/applyEdit"][count]
    editor.send({"jsonrpc": "2.0", "id": message["id"], "result": {"applied": applied, "failureReason": "read-only"}})
    found: dict[str, Any] = message["params"]["edit"]
    return found


def test_a_problem_is_fixed_by_a_code_action_and_a_versioned_edit(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    engine.answer = lambda request: script(fenced("    return w + h"))
    editor.open(uri, TEXT, version=5)
    problem = {"range": params(uri, (4, 11), (4, 12))["range"], "message": "use +\nnot *"}
    fix, *others = actions(editor, uri, (4, 0), (4, 0), diagnostics=[problem])
    assert (fix["title"], fix["kind"]) == ("Draftline: fix: use + not *", "quickfix")
    assert {a["command"]["command"] for a in others} == {"draftline.docstring", "draftline.tests", "draftline.explain"}
    count = len(editor.sent("workspace/applyEdit"))
    asked = editor.start("workspace/executeCommand", fix["command"])
    (change,) = apply_in(editor, count)["documentChanges"]
    assert editor.result(asked) is None
    assert change["textDocument"] == {"uri": uri, "version": 5}
    assert after(TEXT, change["edits"]) == TEXT.replace("w * h", "w + h")
    assert "Fix this: use +\nnot *" in engine.requests[0]["segments"][-1]["text"]


def test_an_edit_that_the_editor_does_not_apply_is_told(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    engine.answer = lambda request: script(fenced("    return w + h"))
    editor.open(uri, TEXT)
    begin, count = len(editor.messages), len(editor.sent("workspace/applyEdit"))
    asked = editor.start(
        "workspace/executeCommand", {"command": "draftline.edit", "arguments": [params(uri, (4, 0), (4, 1), "+")]}
    )
    apply_in(editor, count, applied=False)
    apply_in(editor, count, applied=False)
    editor.result(asked)
    assert "did not apply the edit: read-only" in editor.wait_for("window/showMessage", after=begin)["message"]


def test_a_command_without_an_edit_says_why(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    editor.open(uri, TEXT)
    begin = len(editor.messages)
    editor.request(
        "workspace/executeCommand", {"command": "draftline.edit", "arguments": [params(uri, (4, 0), (4, 1))]}
    )
    assert "an edit needs an instruction" in editor.wait_for("window/showMessage", after=begin)["message"]
    assert engine.requests == []


def test_explanations_are_shown_and_streamed(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    engine.answer = lambda request: Script(pieces=["It multi", "plies.\n"])
    editor.open(uri, TEXT)
    begin = len(editor.messages)
    told = editor.request(
        "workspace/executeCommand", {"command": "draftline.explain", "arguments": [params(uri, (4, 5), (4, 5))]}
    )
    assert told == "It multiplies."
    assert "It multiplies." in editor.wait_for("window/showMessage", after=begin)["message"]
    assert "def area(w, h):\n    return w * h\n```" in engine.requests[0]["segments"][-1]["text"], "the whole function"
    answer = edit(editor, uri, (4, 5), (4, 5), kind="explain", partialResultToken=9)
    assert answer["text"] == "It multiplies."
    assert [m["value"] for _, m in editor.sent("$/progress", begin) if m["token"] == 9][-1] == {
        "text": "It multiplies.\n"
    }


def test_nothing_but_a_fix_is_offered_to_an_editor_that_looks_by_itself(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    editor.open(uri, TEXT)
    assert actions(editor, uri, (4, 0), (4, 4), triggerKind=2) == []
    problem = {"range": params(uri, (4, 11), (4, 12))["range"], "message": "use +"}
    (fix,) = actions(editor, uri, (4, 0), (4, 4), triggerKind=2, diagnostics=[problem])
    assert fix["kind"] == "quickfix"
    assert len(actions(editor, uri, (4, 0), (4, 4), triggerKind=1)) == 3


def test_an_explanation_goes_on_while_one_types(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    engine.answer = lambda request: Script(pieces=["It ", "multiplies."], pause=0.3)
    editor.open(uri, TEXT)
    asked = editor.start("draftline/edit", params(uri, (4, 5), (4, 5), kind="explain"))
    engine.wait_until(lambda: bool(engine.requests))
    editor.insert(uri, 2, 0, 0, "# new\n")
    answer = editor.result(asked)
    assert (answer["reason"], answer["text"]) == ("ready", "It multiplies.")


def test_a_prompt_that_the_context_does_not_hold_is_made_shorter_once(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    replies = iter([script("", error=(400, "context_overflow", "too long")), script(fenced("    return w"))])
    engine.answer = lambda request: next(replies)
    editor.open(uri, "x = 1\n" * 6000 + TEXT)
    answer = edit(editor, uri, (6004, 0), (6004, 4), "only w")
    assert answer["reason"] == "ready"
    first, second = (len(request["segments"][-1]["text"]) for request in engine.requests)
    assert second < first


def test_code_actions_are_of_the_wanted_kinds_and_of_edited_documents_only(
    editor: LspClient, engine: FakeEngine, uri: str
) -> None:
    editor.open(uri, TEXT)
    assert actions(editor, uri, (4, 0), (4, 4), only=["quickfix"]) == []
    assert len(actions(editor, uri, (4, 0), (4, 4), only=["refactor"])) == 3
    assert actions(editor, uri, (4, 0), (4, 4), only=["refactor.extract"]) == []
    assert actions(editor, uri + "x", (4, 0), (4, 4)) == []
