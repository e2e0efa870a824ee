"""The engine comes late, dies or can't be started: the editor never waits, and completions come back."""

import os
import signal

from engine_process import REAL_COMMAND, engine_home, wait_until
from fake_engine import FakeEngine, Script, script
from language_server import root_of
from tiny_model import seldom_end, write_tiny_model


def ready_again(editor, after):
    return editor.wait_for("draftline/status", lambda s: s["state"] == "ready", after=after)


def test_u45_the_engine_dies_in_the_middle_of_a_completion(own_server, folder, uri):
    answers = iter([script("of the first"), Script(pieces=["a", "b"], die=True)])
    engine = FakeEngine(folder / "run", lambda request: next(answers))
    editor = own_server()
    editor.initialize(root=root_of(folder), settings={"debounce_ms": 0, "alternatives": 1, "prefetch": False})
    editor.wait_ready()
    editor.open(uri, "x = ")
    editor.insert(uri, 2, 0, 4, "1 + ")
    assert len(editor.inline(uri, 0, 4)) == 1
    after = len(editor.messages)
    request = editor.start_inline(uri, 0, 8)
    engine.wait_until(lambda: len(engine.requests) == 2)
    second = FakeEngine(folder / "run", lambda request: script("value"), model_id="second")
    try:
        assert editor.result(request)["items"] == []
        last = editor.wait_for("draftline/status", lambda s: s["last"]["reason"] != "shown", after=after)["last"]
        assert last["reason"] == "error"
        assert "ended" in last["detail"]
        assert ready_again(editor, after)["model"] == "second"
        # The document, with its changes, is as it was.
        (item,) = editor.inline(uri, 0, 8)
        assert item["insertText"] == "value"
        assert "".join(second.texts("prefix")) == "x = 1 + "
        # What the first engine made is forgotten: the second may hold another model.
        assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == ["value"]
    finally:
        engine.close()
        second.close()


def test_an_engine_that_ended_while_idle_is_started_again_for_the_next_request(own_server, folder, uri):
    engine = FakeEngine(folder / "run")
    editor = own_server()
    editor.initialize(root=root_of(folder), settings={"debounce_ms": 0, "alternatives": 1, "prefetch": False})
    editor.wait_ready()
    editor.open(uri, "x = ")
    assert len(editor.inline(uri, 0, 4)) == 1
    engine.die()
    after = len(editor.messages)
    request = editor.start_inline(uri, 0, 3)
    editor.wait_for("draftline/status", lambda s: s["state"] == "loading", after=after)
    second = FakeEngine(folder / "run", lambda request: script("second"), model_id="second")
    assert [item["insertText"] for item in editor.result(request)["items"]] == ["second"]
    states = [(params["state"], params["model"]) for _, params in editor.sent("draftline/status", after)]
    assert states == [("loading", "fake"), ("ready", "second"), ("ready", "second")]
    # The first engine's item, made for this very text, was forgotten with it.
    assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == ["second"]
    engine.close()
    second.close()


def test_a_request_that_has_no_time_left_for_another_engine_says_so(own_server, folder, uri):
    engine = FakeEngine(folder / "run")
    editor = own_server()
    editor.initialize(root=root_of(folder), settings={"debounce_ms": 0, "timeout_ms": 100})
    editor.wait_ready()
    editor.open(uri, "x = ")
    engine.die()
    assert editor.inline(uri, 0, 4) == []
    last = editor.wait_for("draftline/status", lambda s: s["last"] is not None)
    assert (last["state"], last["last"]["reason"]) == ("loading", "error")
    assert last["last"]["detail"] == "the engine was lost and is being started again"
    # The first one keeps its lock: an engine that waits for it must not come between.
    after = len(editor.messages)
    second = FakeEngine(folder / "run")
    ready_again(editor, after)
    assert len(editor.inline(uri, 0, 4)) == 1
    engine.close()
    second.close()


def test_an_answer_that_the_engine_broke_off_is_an_error_and_nobodys_cancellation(editor, engine, uri):
    engine.answer = lambda request: script("val", reason="cancelled")
    editor.open(uri, "x = ")
    after = len(editor.messages)
    assert editor.inline(uri, 0, 4) == []
    last = editor.wait_for("draftline/status", lambda s: s["last"] is not None, after=after)["last"]
    assert last["reason"] == "error"
    assert last["detail"] == "the engine was stopped before the answer was complete"


def test_while_the_engine_loads_requests_are_answered_at_once_and_progress_is_shown(own_server, folder, uri):
    engine = FakeEngine(folder / "run", status="loading")
    editor = own_server()
    editor.initialize(root=root_of(folder))
    editor.open(uri, "x = ")
    token = editor.wait_for("window/workDoneProgress/create")["token"]
    assert editor.inline(uri, 0, 4) == []
    status = editor.wait_for("draftline/status", lambda s: s["last"] is not None)
    assert (status["state"], status["last"]["reason"]) == ("loading", "error")
    assert "being loaded" in status["last"]["detail"]
    engine.health["status"] = "ready"
    editor.wait_ready()
    values = [params["value"] for _, params in editor.sent("$/progress") if params["token"] == token]
    editor.wait_for("$/progress", lambda p: p["token"] == token and p["value"]["kind"] == "end")
    assert values[0]["kind"] == "begin"
    assert values[0]["title"] == "Draftline: loading model"
    assert len(editor.inline(uri, 0, 4)) == 1
    engine.close()


def test_an_engine_that_can_not_be_started_is_told_once_and_tried_again(own_server, folder, uri):
    missing = str(folder / "missing.gguf")
    editor = own_server(env={"DRAFTLINE_MODEL": missing})
    editor.initialize(root=root_of(folder))
    editor.open(uri, "x = ")
    status = editor.wait_for("draftline/status", lambda s: s["state"] == "unavailable")
    assert missing in status["message"]
    editor.wait_until(
        lambda: sum(p["state"] == "unavailable" for _, p in editor.sent("draftline/status")) >= 2, "a second try"
    )
    assert editor.inline(uri, 0, 4) == []
    shown = [params["message"] for _, params in editor.sent("window/showMessage")]
    assert len(shown) == 1
    assert missing in shown[0]
    assert "\n" not in shown[0]
    assert editor.stderr == []


def test_an_engine_killed_in_the_middle_of_a_request_comes_back_with_its_model(own_server, folder, uri):
    with engine_home(REAL_COMMAND) as home:
        path = write_tiny_model(home.places.runtime / "chosen.gguf", edit=seldom_end)
        pid = home.serve("--model", str(path)).pid
        editor = own_server(env=home.environment)
        editor.initialize(
            root=root_of(folder),
            settings={"debounce_ms": 0, "max_tokens": 2000, "timeout_ms": 60_000, "alternatives": 1, "prefetch": False},
        )
        assert editor.wait_ready()["model"] == "chosen"
        editor.open(uri, "x = ")
        after = len(editor.messages)
        request = editor.start_inline(uri, 0, 4)
        wait_until(lambda: home.health().active)
        os.kill(pid, signal.SIGKILL)
        assert editor.result(request)["items"] == []
        assert ready_again(editor, after)["model"] == "chosen"
        assert home.health().pid != pid
