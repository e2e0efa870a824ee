"""Broken frames, unknown methods and a wrong order of messages: the server answers in one line and lives on."""

import json
import signal
import sys

import pytest
from fake_engine import FakeEngine, script
from language_server import root_of

from bench.lsp_client import LspError


@pytest.fixture
def fresh(own_server, folder):
    engine = FakeEngine(folder / "run")
    yield own_server()
    engine.close()


def frame(body):
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def code_of(client, method, params=None):
    with pytest.raises(LspError) as refused:
        client.request(method, params)
    assert "traceback" not in str(refused.value.error).lower()
    return refused.value.code


def test_requests_before_initialize_are_refused_and_notifications_left_out(fresh, folder, uri):
    where = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}, "context": {"triggerKind": 1}}
    assert code_of(fresh, "textDocument/inlineCompletion", where) == -32002
    assert code_of(fresh, "draftline/unknown") == -32002
    fresh.open(uri, "too early")
    fresh.initialize(root=root_of(folder))
    fresh.wait_ready()
    assert fresh.inline(uri, 0, 0) == []
    assert fresh.stderr == []


def test_a_second_initialize_and_requests_after_shutdown_are_refused(fresh, folder):
    fresh.initialize(root=root_of(folder))
    assert code_of(fresh, "initialize", {"processId": None, "rootUri": None, "capabilities": {}}) == -32600
    assert fresh.request("shutdown") is None
    assert code_of(fresh, "draftline/unknown") == -32600
    fresh.notify("exit")
    assert fresh.process.wait(10) == 0


def test_exit_without_shutdown_has_status_1(fresh, folder):
    fresh.initialize(root=root_of(folder))
    fresh.notify("exit")
    assert fresh.process.wait(10) == 1


def test_the_server_ends_when_the_editor_is_gone(fresh, folder):
    fresh.initialize(root=root_of(folder))
    fresh.process.stdin.close()
    assert fresh.process.wait(10) == 1
    assert fresh.stderr == []


@pytest.mark.parametrize(
    "data",
    [
        frame(b"{not json"),
        frame(b"[]"),
        frame(b"[1, {}]"),
        frame(b"17"),
        frame(b"{}"),
        frame(b'{"jsonrpc": "1.0", "method": "x"}'),
        frame(b'{"jsonrpc": "2.0"}'),
        frame(b'{"jsonrpc": "2.0", "method": 5}'),
        frame(b'{"jsonrpc": "2.0", "id": {}, "method": "shutdown"}'),
        frame(b'{"jsonrpc": "2.0", "id": 999, "result": 1}'),
        frame(b"\xff\xfe\x00"),
        frame(b'{"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": 3}}'),
        frame(b'{"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 12345}}'),
        frame(b'{"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {}}'),
        frame(b'{"jsonrpc": "2.0", "method": "unknown/thing", "params": {"secret": "CANARY"}}'),
        frame(b'{"jsonrpc": "2.0", "method": "textDocument/didChange", "params": "CANARY"}'),
        frame(b"[" * 5000 + b"]" * 5000),
        b"Content-Length: 99999999999999\r\n\r\n\r\n",
        b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n\r\n",
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: 0\r\n\r\n",
        b"Content-Length: nothing\r\n\r\n",
        b"garbage\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_can_not_be_understood_is_left_out(editor, engine, uri, data):
    editor.send_bytes(data)
    editor.open(uri, "x = ")
    assert len(editor.inline(uri, 0, 4)) == 1
    assert "CANARY" not in str(editor.messages)
    assert editor.stderr == []
    for _, params in editor.sent("window/logMessage"):
        assert "\n" not in params["message"]
        assert "Traceback" not in params["message"]
    assert editor.sent("window/showMessage") == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            b'{"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": {"CANARY": 1}}}',
            "$/cancelRequest could not be handled: a request's id must be a number or a string",
        ),
        (
            b'{"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": "CANARY"}}',
            "textDocument/didOpen could not be handled: its parameters are not valid",
        ),
        (b"[" * 200_000, "a message from the editor is nested too deeply to be read; it was left out"),
    ],
)
def test_what_can_not_be_handled_is_one_line_that_names_its_method(editor, engine, uri, data, line):
    before = len(editor.sent("window/logMessage"))
    editor.send_bytes(frame(data))
    editor.open(uri, "x = ")
    assert len(editor.inline(uri, 0, 4)) == 1
    logged = [params["message"] for _, params in editor.sent("window/logMessage")[before:]]
    assert [message for message in logged if "item" not in message][:1] == [line], logged
    assert "CANARY" not in str(editor.messages)


def test_a_document_whose_name_no_file_can_have_is_completed(editor, engine, uri):
    editor.open(uri + "%00x", "x = ")
    assert len(editor.inline(uri + "%00x", 0, 4)) == 1


@pytest.mark.parametrize(
    "header", [b"content-length: %d\r\n\r\n", b"CONTENT-LENGTH:%d\r\n\r\n", b"Content-Length:  %d\n\n"]
)
def test_the_header_is_read_however_it_is_written(editor, engine, header):
    body = json.dumps({"jsonrpc": "2.0", "id": 77001, "method": "draftline/unknown"}).encode()
    editor.send_bytes(header % len(body) + body)
    with pytest.raises(LspError):
        editor.result(77001)


def test_unknown_methods_and_wrong_parameters_are_refused(editor, engine):
    assert code_of(editor, "textDocument/unknown", {}) == -32601
    assert code_of(editor, "textDocument/inlineCompletion", {"textDocument": 1}) == -32602
    assert code_of(editor, "textDocument/inlineCompletion", None) == -32602
    assert code_of(editor, "workspace/executeCommand", {"command": "draftline.unknown"}) == -32602


def test_documents_that_are_not_open_are_answered_with_nothing(editor, engine, uri):
    assert editor.inline(uri, 0, 0) == []
    assert editor.popup(uri, 0, 0) == []
    editor.insert(uri, 2, 0, 0, "x")
    editor.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    assert editor.inline(uri, 0, 0) == []
    last = editor.wait_for("draftline/status", lambda s: s["last"] and s["last"]["uri"] == uri)["last"]
    assert last["reason"] == "excluded"
    assert engine.requests == []


def test_no_text_of_a_document_or_an_item_is_logged(editor, engine, uri):
    engine.answer = lambda request: script("CANARY_OF_THE_MODEL")
    editor.open(uri, "CANARY = 'f00d'\nx = ")
    editor.inline(uri, 1, 4)
    editor.insert(uri, 2, 0, 0, "CANARY")
    editor.inline(uri, 0, 3)
    assert "CANARY" not in json.dumps(editor.messages) + "".join(editor.stderr)


def with_answer(body, finish=""):
    """The server with faults planted into the heart of it."""
    code = f"""
import sys, lsp.completer, lsp.server
async def answer(*arguments, **more):
    {body}
    return lsp.completer.Answer(lsp.completer.Outcome("empty"))
def items(*arguments):
    {finish}
    return []
lsp.completer.Completer.answer = answer
lsp.server.inline_items = items
sys.exit(lsp.server.main())
"""
    return (sys.executable, "-P", "-c", code)


def test_what_is_printed_by_mistake_does_not_break_the_protocol(own_server, folder, uri):
    engine = FakeEngine(folder / "run")
    editor = own_server(command=with_answer("print('noise')"))
    editor.initialize(root=root_of(folder))
    editor.wait_ready()
    assert editor.inline(uri, 0, 0) == []
    assert editor.inline(uri, 0, 0) == []
    engine.close()


def test_a_request_that_fails_inside_is_refused_without_a_traceback_or_source_text(own_server, folder, uri):
    editor = own_server(command=with_answer("pass", finish="raise ValueError('CANARY')"))
    editor.initialize(root=root_of(folder))
    with pytest.raises(LspError) as refused:
        editor.inline(uri, 0, 0)
    assert refused.value.error == {"code": -32603, "message": "internal error: ValueError"}
    assert "CANARY" not in str(editor.messages) + str(editor.stderr)


def test_an_internal_error_is_one_line_without_a_traceback_or_source_text(own_server, folder, uri):
    engine = FakeEngine(folder / "run")
    editor = own_server(command=with_answer("raise ValueError('CANARY')"))
    editor.initialize(root=root_of(folder))
    editor.wait_ready()
    assert editor.inline(uri, 0, 0) == []
    last = editor.wait_for("draftline/status", lambda s: s["last"] is not None)["last"]
    assert (last["reason"], last["detail"]) == ("error", "internal error: ValueError")
    assert "CANARY" not in str(editor.messages) + str(editor.stderr)
    assert "Traceback" not in str(editor.messages) + str(editor.stderr)
    engine.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_although_its_input_stays_open(own_server, folder, uri, number):
    engine = FakeEngine(folder / "run", lambda request: script("", hang=True))
    editor = own_server()
    editor.initialize(root=root_of(folder))
    editor.wait_ready()
    editor.open(uri, "x = ")
    editor.start_inline(uri, 0, 4)
    engine.wait_until(lambda: engine.requests)
    editor.process.send_signal(number)
    assert editor.process.wait(10) == -number
    assert editor.stderr == []
    engine.close()
