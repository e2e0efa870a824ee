"""Requests that are replaced, cancelled, late or stale; and items that are remembered."""

import pytest
from fake_engine import Script, script

from bench.lsp_client import LspError


def reason_of(editor, after, kind="inline"):
    """The one reason of the one request that ended since."""
    lines = [params["message"] for _, params in editor.sent("window/logMessage", after)]
    (line,) = [line for line in lines if line.startswith("completion ") and f"kind={kind}" in line]
    return line.split("reason=")[1].split()[0]


def test_a_cancelled_request_is_cancelled_in_the_engine_and_the_next_one_works(editor, engine, uri):
    engine.answer = lambda request: Script(pieces=["a", "b"], hang=True)
    editor.open(uri, "x = ")
    after = len(editor.messages)
    request = editor.start_inline(uri, 0, 4)
    engine.wait_until(lambda: len(engine.requests) == 1)
    editor.cancel(request)
    with pytest.raises(LspError) as refused:
        editor.result(request)
    assert refused.value.code == -32800
    engine.wait_until(lambda: len(engine.cancelled) == 1)
    assert reason_of(editor, after) == "cancelled"
    engine.answer = lambda request: script("value")
    assert len(editor.inline(uri, 0, 4)) == 1


def test_u32_a_newer_request_replaces_the_older_of_its_document_and_no_other_documents(editor, engine, uri):
    other = uri.replace(".py", "b.py")
    engine.answer = lambda request: Script(pieces=["a"], hang=True)
    editor.open(uri, "x = 1\ny = 2")
    editor.open(other, "z = ")
    kept = editor.start_inline(other, 0, 4)
    engine.wait_until(lambda: len(engine.requests) == 1)
    first = editor.start_inline(uri, 0, 4)
    engine.wait_until(lambda: len(engine.requests) == 2)
    engine.answer = lambda request: script("value")
    second = editor.start_inline(uri, 1, 4)
    assert editor.result(first)["items"] == []
    assert editor.result(second)["items"][0]["insertText"] == "value"
    engine.wait_until(lambda: len(engine.cancelled) == 1)
    assert engine.cancelled[0] is engine.requests[1]
    editor.cancel(kept)
    engine.wait_until(lambda: len(engine.cancelled) == 2)


def test_a_storm_of_requests_does_not_pile_up_in_the_engine_and_each_is_answered(editor, engine, uri):
    running = []

    def answer(request):
        running.append(len(engine.requests) - len(engine.cancelled))
        last = len(engine.texts("suffix")[0]) == 13
        return script("x") if last else Script(pieces=["x"], hang=True)

    engine.answer = answer
    editor.open(uri, "\n" * 50 + "end")
    ids = [editor.start_inline(uri, line, 0) for line in range(41)]
    answers = [editor.result(request)["items"] for request in ids]
    assert [len(items) for items in answers] == [0] * 40 + [1]
    # One at a time (see test_lanes.py), but the engine may hear of the end of some only after it got the next.
    assert max(running) < 10


def test_u29_an_item_for_a_version_that_has_changed_meanwhile_is_dropped(editor, engine, uri):
    engine.answer = lambda request: Script(pieces=["value"], hang=True)
    editor.open(uri, "x = ")
    after = len(editor.messages)
    request = editor.start_inline(uri, 0, 4)
    engine.wait_until(lambda: len(engine.requests) == 1)
    editor.insert(uri, 2, 0, 0, "y")
    assert editor.result(request, timeout=4)["items"] == []  # at once, not after the request's own timeout
    assert reason_of(editor, after) == "cancelled"
    engine.wait_until(lambda: len(engine.cancelled) == 1)
    engine.answer = lambda request: script("value")
    assert editor.inline(uri, 0, 5)[0]["command"]["arguments"][0]["version"] == 2


@pytest.mark.parametrize("versions", [(3, 2), (2, 2)])
def test_u29_changes_out_of_order_give_no_item_until_the_text_is_known_again(editor, engine, uri, versions):
    editor.open(uri, "x = ")
    for version in versions:
        editor.insert(uri, version, 0, 4, str(version))
    after = len(editor.messages)
    assert editor.inline(uri, 0, 4) == []
    assert reason_of(editor, after) == "excluded"
    editor.change(uri, 9, {"text": "whole = "})
    assert editor.inline(uri, 0, 8)[0]["command"]["arguments"][0]["version"] == 9
    assert "".join(engine.texts("prefix")) == "whole = "


def test_u29_a_gap_in_the_versions_is_no_fault(editor, engine, uri):
    editor.open(uri, "x = ")
    editor.insert(uri, 12, 0, 4, "1 + ")
    assert editor.inline(uri, 0, 8)[0]["command"]["arguments"][0]["version"] == 12
    assert "".join(engine.texts("prefix")) == "x = 1 + "


def test_u29_a_change_that_can_not_be_read_makes_the_text_unknown(editor, engine, uri):
    editor.open(uri, "x = ")
    document = {"uri": uri, "version": None}
    editor.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": "y"}]})
    assert editor.inline(uri, 0, 4) == []
    editor.open(uri, "x = ", version=3)
    assert len(editor.inline(uri, 0, 4)) == 1


def test_u14_typing_along_the_item_keeps_the_rest_without_the_engine(editor, engine, uri):
    engine.answer = lambda request: script("compute(a, b)")
    editor.open(uri, "x = ")
    assert editor.inline(uri, 0, 4)[0]["insertText"] == "compute(a, b)"
    for number, character in enumerate("comp"):
        editor.insert(uri, 2 + number, 0, 4 + number, character)
        (item,) = editor.inline(uri, 0, 5 + number)
        assert item["insertText"] == "compute(a, b)"[number + 1 :]
        data = item["command"]["arguments"][0]
        assert (data["cached"], data["prefilled"], data["version"]) == (True, 0, 2 + number)
    assert len(engine.requests) == 1
    editor.insert(uri, 9, 0, 8, "X")
    editor.inline(uri, 0, 9)
    assert len(engine.requests) == 2


@pytest.mark.parametrize("what", ["suffix", "prefix", "context", "limit"])
def test_u13_a_remembered_item_is_not_given_when_what_it_was_made_from_changed(editor, engine, uri, what):
    other = uri.replace(".py", "_other.py")
    editor.open(other, "a = 1\n")
    editor.open(uri, "first = 1\nx = \nlast = 2\n")
    editor.inline(uri, 1, 4)
    if what == "suffix":
        editor.insert(uri, 2, 2, 0, "very_")
    elif what == "prefix":
        editor.insert(uri, 2, 0, 0, "very_")
    elif what == "context":
        editor.insert(other, 2, 0, 0, "b = 2\n")
    else:
        editor.notify("workspace/didChangeConfiguration", {"settings": {"max_tokens": 50}})
    engine.answer = lambda request: script("fresh")
    assert editor.inline(uri, 1, 4)[0]["insertText"] == "fresh"
    assert len(engine.requests) == 2
    editor.notify("workspace/didChangeConfiguration", {"settings": {"max_tokens": 96}})


def test_an_engine_that_keeps_silent_is_given_up_on(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"timeout_ms": 100}})
    engine.answer = lambda request: Script(hang=True)
    editor.open(uri, "x = ")
    after = len(editor.messages)
    assert editor.inline(uri, 0, 4) == []
    assert reason_of(editor, after) == "timeout"
    assert engine.requests[0]["timeout_ms"] == 100
    engine.wait_until(lambda: len(engine.cancelled) == 1)
    editor.notify("workspace/didChangeConfiguration", {"settings": {"timeout_ms": 5000}})


def test_typing_waits_a_moment_before_the_engine_is_asked(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"debounce_ms": 400}})
    editor.open(uri, "x = 1")
    engine.answer = lambda request: script(" + 1")
    for column in range(4):
        editor.start_inline(uri, 0, column, automatic=True)
    assert len(editor.inline(uri, 0, 5, automatic=True)) == 1
    assert len(engine.requests) == 1
    editor.notify("workspace/didChangeConfiguration", {"settings": {"debounce_ms": 0, "alternatives": 1}})


def test_a_setting_that_makes_no_sense_is_told_and_left(editor, engine, uri):
    after = len(editor.messages)
    wrong = {"max_tokens": "many", "sources": {"open_files": 3}, "timeout_ms": -1, "unknown": 1}
    editor.notify("workspace/didChangeConfiguration", {"settings": {"draftline": wrong}})
    editor.open(uri, "x = ")
    editor.inline(uri, 0, 4)
    told = [p["message"] for _, p in editor.sent("window/logMessage", after) if p["type"] == 2]
    assert [line.split()[1] for line in told[:3]] == ["max_tokens", "timeout_ms", "sources.open_files"]
    assert told[3:] == ["no settings of these names are known, they were left out: unknown"]
    assert engine.requests[-1]["max_tokens"] == 96
