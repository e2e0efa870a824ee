"""The language server with a real engine process and a tiny random model: from a keystroke to the figures.

What the model writes means nothing; what is reused, cancelled, killed and started again does.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from engine_process import REAL_COMMAND, engine_home, process_is_gone, wait_until
from tiny_model import write_tiny_model

from bench.lsp_client import LspClient
from server.process.lock import lock_holder

SCRIPT = Path(sys.executable).with_name("draftline")
LINES = "".join(f"name_{i} = call({i})\n" for i in range(60))


@pytest.fixture(scope="module")
def home():
    with engine_home(REAL_COMMAND) as home:
        yield home


@pytest.fixture(scope="module")
def editor(home):
    """The console script in a workspace whose own folders are named as ours; it has to start the engine itself."""
    model = write_tiny_model(home.places.runtime / "tiny.gguf")
    root = home.places.runtime / "work"
    for name in ("server", "lsp", "prompts", "torch"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text(f"open({str(root / 'imported')!r}, 'a').write(__file__)\n")
    with LspClient([str(SCRIPT), "lsp", "--model", str(model)], cwd=root, env=home.environment, timeout=100) as editor:
        editor.initialize(
            root=root,
            settings={"debounce_ms": 0, "timeout_ms": 90_000, "max_tokens": 24, "alternatives": 1, "prefetch": False},
        )
        editor.wait_ready()
        yield editor
        assert not (root / "imported").exists()


@pytest.fixture
def uri(home, request):
    return (home.places.runtime / "work" / f"{request.node.name}.py").as_uri()


def last(editor, uri, version):
    def accept(status):
        return status["last"] and (status["last"]["uri"], status["last"]["version"]) == (uri, version)

    return editor.wait_for("draftline/status", accept)["last"]


def test_typing_reuses_what_the_engine_holds(editor, uri):
    editor.open(uri, LINES + "x = ")
    editor.inline(uri, 60, 4)
    first = last(editor, uri, 1)
    assert first["reason"].split(":")[0] in ("shown", "empty", "filtered")
    assert first["prefilled"] > 200
    editor.insert(uri, 2, 60, 4, "Z")
    editor.inline(uri, 60, 5)
    second = last(editor, uri, 2)
    assert second["prefilled"] + second["reused"] == first["prefilled"] + first["reused"] + 1
    assert second["prefilled"] < 100
    assert second["ttft_ms"] > 0


def test_a_cancelled_request_leaves_the_engine_usable_and_the_same(editor, uri):
    editor.open(uri, LINES + "y = ")
    answer = editor.result(editor.start_inline(uri, 60, 4))
    for version in range(2, 12):
        editor.insert(uri, version, 60, 4, "Q")
        request = editor.start_inline(uri, 60, 5)
        editor.cancel(request)
    editor.change(uri, 20, {"text": LINES + "y = "})
    # Another limit, so that no remembered item answers.
    editor.notify("workspace/didChangeConfiguration", {"settings": {"max_tokens": 25}})
    again = editor.result(editor.start_inline(uri, 60, 4))
    editor.notify("workspace/didChangeConfiguration", {"settings": {"max_tokens": 24}})
    assert [item["insertText"][:20] for item in again["items"]] == [item["insertText"][:20] for item in answer["items"]]


def kill_in_the_middle(editor, home, uri):
    """Asks and kills until a request was caught running; returns its status, its version and the dead engine."""
    for version in range(2, 8):
        editor.insert(uri, version, 60, 0, "zZ"[version % 2])
        after = len(editor.messages)
        pid = lock_holder(home.places.lock)
        request = editor.start_inline(uri, 60, 1)
        wait_until(lambda request=request: home.health().active or editor.answered(request), 5)
        os.kill(pid, signal.SIGKILL)
        items = editor.result(request)["items"]
        ended = last(editor, uri, version)
        if ended["reason"] == "error":
            assert items == []
            editor.wait_for("draftline/status", lambda s: s["state"] == "ready", after=after)
            return ended, version, pid
        editor.inline(uri, 60, 0)  # it was too quick; this starts the next engine
    raise AssertionError("every request was answered before its engine was killed")


def test_u45_an_engine_that_is_killed_in_the_middle_is_replaced_and_no_document_is_lost(editor, home, uri):
    editor.open(uri, LINES)
    ended, version, pid = kill_in_the_middle(editor, home, uri)
    assert str(pid) in ended["detail"]
    editor.insert(uri, version + 1, 60, 0, "W")
    editor.inline(uri, 60, 1)
    again = last(editor, uri, version + 1)
    assert again["reason"].split(":")[0] in ("shown", "empty", "filtered")
    assert again["prefilled"] > 200
    assert process_is_gone(pid)
    assert lock_holder(home.places.lock) not in (None, pid)


def test_u45_a_request_that_a_dead_engine_had_not_taken_is_answered_by_the_next(editor, home, uri):
    editor.open(uri, LINES + "w = ")
    pid = lock_holder(home.places.lock)
    os.kill(pid, signal.SIGSTOP)
    request = editor.start_inline(uri, 60, 4)
    with pytest.raises(TimeoutError):
        editor.result(request, timeout=0.5)
    os.kill(pid, signal.SIGKILL)
    editor.result(request)
    assert last(editor, uri, 1)["prefilled"] > 200
