"""What the editor sees of a long prompt while the engine reads it."""

import pytest
from fake_engine import Script

PARTS = [{"prefill": {"done": done, "total": 30_000}} for done in (4_096, 12_000, 30_000)]


def readings(editor, after):
    """The different states of reading that were told, in order, with what was said of them."""
    told = [(status["reading"], status["message"]) for _, status in editor.sent("draftline/status", after)]
    return [pair for pair, before in zip(told, [None, *told], strict=False) if pair != before]


@pytest.fixture
def ready(editor):
    return (None, editor.sent("draftline/status")[-1][1]["message"])


def test_a_long_prompt_is_told_while_it_is_read(editor, engine, uri, ready):
    engine.answer = lambda request: Script([*PARTS, "value"], pause=0.02)
    editor.open(uri, "x = ")
    after = len(editor.messages)
    assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == ["value"]
    assert engine.requests[0]["progress"] is True
    editor.wait_for("draftline/status", lambda s: s["last"] and s["last"]["uri"] == uri, after=after)
    assert readings(editor, after) == [
        ({"done": 4_096, "total": 30_000}, "reading 4,096 of 30,000 tokens"),
        ({"done": 12_000, "total": 30_000}, "reading 12,000 of 30,000 tokens"),
        ready,
    ]


@pytest.mark.parametrize("end", ["change", "cancel"])
def test_nothing_is_told_any_more_of_a_prompt_that_is_given_up(editor, engine, uri, ready, end):
    engine.answer = lambda request: Script(PARTS[:2], hang=True)
    editor.open(uri, "x = ")
    after = len(editor.messages)
    request = editor.start_inline(uri, 0, 4)
    editor.wait_for("draftline/status", lambda s: s["reading"] == PARTS[1]["prefill"], after=after)
    after = len(editor.messages)
    if end == "change":
        editor.insert(uri, 2, 0, 4, "1")
    else:
        editor.notify("$/cancelRequest", {"id": request})
    status = editor.wait_for("draftline/status", lambda s: s["reading"] is None, after=after)
    assert (None, status["message"]) == ready
    engine.wait_until(lambda: len(engine.cancelled) == 1)


def test_a_prompt_that_takes_too_long_is_not_told_for_ever(editor, engine, uri, ready):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"timeout_ms": 200}})
    engine.answer = lambda request: Script(PARTS[:2], hang=True)
    editor.open(uri, "x = ")
    after = len(editor.messages)
    assert editor.inline(uri, 0, 4) == []
    editor.wait_for("draftline/status", lambda s: s["last"] and s["last"]["reason"] == "timeout", after=after)
    assert len(readings(editor, after)) > 1
    assert readings(editor, after)[-1] == ready
    editor.notify("workspace/didChangeConfiguration", {"settings": {"timeout_ms": 5000}})
