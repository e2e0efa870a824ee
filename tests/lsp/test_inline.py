"""Ghost text through the real process: what the engine is asked, and what the editor gets."""

import pytest
from fake_engine import script
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from language_server import root_of, start_server

FIGURES = {"ttft_ms", "prefilled", "reused", "drafted", "accepted", "tokens_per_second"}


def last_of(editor, uri):
    """The status that the latest request of a document left."""
    return editor.wait_for("draftline/status", lambda s: s["last"] and s["last"]["uri"] == uri)["last"]


def reasons(editor, after):
    """The reasons of the requests that ended since, from the log."""
    lines = [params["message"] for _, params in editor.sent("window/logMessage", after)]
    return [line.split("reason=")[1].split()[0] for line in lines if line.startswith("completion ")]


def test_an_item_is_inserted_at_the_cursor(editor, engine, uri):
    engine.answer = lambda request: script("a + b")
    editor.open(uri, "def add(a, b):\n    return \n")
    (item,) = editor.inline(uri, 1, 11)
    assert item["insertText"] == "a + b"
    assert item["range"] == {"start": {"line": 1, "character": 11}, "end": {"line": 1, "character": 11}}
    assert "".join(engine.texts("prefix")) == "def add(a, b):\n    return "
    assert engine.texts("suffix") == ["\n"]


def test_u41_every_item_and_answer_carries_its_figures(editor, engine, uri):
    editor.open(uri, "x = ")
    (item,) = editor.inline(uri, 0, 4)
    (data,) = item["command"]["arguments"]
    assert data.keys() >= FIGURES
    assert (data["prefilled"], data["reused"], data["drafted"], data["accepted"]) == (40, 60, 12, 7)
    assert (data["ttft_ms"], data["tokens_per_second"]) == (12.5, 123.4)
    engine.answer = lambda request: script("")
    assert editor.inline(uri, 0, 0) == []
    last = last_of(editor, uri)
    assert last.keys() >= FIGURES


def test_u29_an_item_carries_the_document_and_version_it_was_made_for(editor, engine, uri):
    editor.open(uri, "x = ", version=7)
    (item,) = editor.inline(uri, 0, 4)
    assert (item["command"]["arguments"][0]["uri"], item["command"]["arguments"][0]["version"]) == (uri, 7)
    assert editor.request("workspace/executeCommand", item["command"]) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("value", "shown"),
        ("", "empty"),
        ("  \n ", "empty"),
        ("<|endoftext|>", "filtered:special_token"),
        ("after = 2", "filtered:repeats_suffix"),
        ("file.py", "shown"),
    ],
)
def test_u09_every_request_ends_with_one_reason_in_the_log_and_in_the_status(editor, engine, uri, text, reason):
    engine.answer = lambda request: script(text)
    editor.open(uri, "before = 1\n\nafter = 2\n")
    after = len(editor.messages)
    items = editor.inline(uri, 1, 0)
    assert len(items) == (reason == "shown")
    assert reasons(editor, after) == [reason]
    assert last_of(editor, uri)["reason"] == reason


@pytest.mark.parametrize(("finish", "text", "reason"), [("timeout", "", "timeout"), ("error", "x", "error")])
def test_u09_what_the_engine_could_not_finish_has_its_reason(editor, engine, uri, finish, text, reason):
    engine.answer = lambda request: script(text, reason=finish)
    editor.open(uri, "x = ")
    assert editor.inline(uri, 0, 4) == []
    assert last_of(editor, uri)["reason"] == reason


@pytest.mark.parametrize(
    ("line", "column", "rule"), [("x = ", 4, "block"), ("f()", 2, "block"), ("x =  + 1", 4, "line")]
)
def test_the_engine_is_told_to_stop_after_the_line_or_the_block(editor, engine, uri, line, column, rule):
    editor.open(uri, f"{line}\n")
    editor.inline(uri, 0, column)
    assert engine.requests[-1]["stop"] == rule


def test_a_request_that_the_engine_refuses_is_an_error_with_its_words(editor, engine, uri):
    engine.answer = lambda request: script("", error=(400, "bad_request", "no such stop rule"))
    editor.open(uri, "x = ")
    assert editor.inline(uri, 0, 4) == []
    assert (last_of(editor, uri)["reason"], last_of(editor, uri)["detail"]) == ("error", "no such stop rule")


def test_a_prompt_beyond_the_context_is_made_shorter_and_asked_once_more(editor, engine, uri):
    answers = iter([script("", error=(400, "context_overflow", "5000 tokens, 4096 possible")), script("fits")])
    engine.answer = lambda request: next(answers)
    editor.open(uri, "".join(f"value_{n} = {n}\n" for n in range(500)))
    assert [item["insertText"] for item in editor.inline(uri, 400, 0)] == ["fits"]
    lengths = [sum(len(segment["text"]) for segment in request["segments"]) for request in engine.requests]
    assert lengths[1] < 0.6 * lengths[0]


def test_u04_no_special_token_is_shown(editor, engine, uri):
    engine.answer = lambda request: script("total + 1<|fim_middle|><think>so")
    editor.open(uri, "x = ")
    assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == ["total + 1"]


def test_a_document_about_special_tokens_is_ordinary_text(editor, engine, uri):
    engine.answer = lambda request: script("<think>'")
    text = "MIDDLE = '<|fim_middle|>'\nTHINK = '<think>'\nAGAIN = '"
    editor.open(uri, text)
    assert [item["insertText"] for item in editor.inline(uri, 2, 9)] == ["<think>'"]
    assert "".join(engine.texts("prefix")) == text


# Line ends


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_u26_the_line_end_changes_nothing_but_the_inserted_text(editor, engine, uri, line_end):
    engine.answer = lambda request: script("if a:\n    return b")
    editor.open(uri, line_end.join(["def f(a):", "    ", "    return 1", ""]))
    (item,) = editor.inline(uri, 1, 4)
    assert item["insertText"] == f"if a:{line_end}    return b"
    assert "".join(engine.texts("prefix")) == "def f(a):\n    "
    assert engine.texts("suffix") == ["\n    return 1\n"]
    editor.insert(uri, 2, 2, 12, line_end + "    x")
    editor.inline(uri, 2, 0)
    assert engine.texts("suffix") == ["    return 1\n    x\n"]


# Positions

WIDE = "a = '😀é漢e\u0301' + "


@pytest.fixture(scope="module", params=["utf-8", "utf-16", "utf-32"])
def encoded(request, folder, running):
    with start_server(folder) as client:
        client.initialize(
            root=root_of(folder),
            encodings=[request.param],
            settings={"debounce_ms": 0, "alternatives": 1, "prefetch": False},
        )
        assert client.encoding == request.param
        client.wait_ready()
        yield client


def units(text, encoding):
    return (
        len(text.encode({"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(encoding, encoding), "surrogatepass"))
        // {
            "utf-8": 1,
            "utf-16": 2,
            "utf-32": 4,
        }[encoding]
    )


def test_u27_a_position_means_the_same_place_in_every_encoding(encoded, engine, uri):
    encoded.open(uri, f"x = 1\n{WIDE}\ny")
    (item,) = encoded.inline(uri, 1, units(WIDE, encoded.encoding))
    assert "".join(engine.texts("prefix")) == f"x = 1\n{WIDE}"
    assert item["range"]["start"] == {"line": 1, "character": units(WIDE, encoded.encoding)}
    encoded.insert(uri, 2, 1, units(WIDE[:8], encoded.encoding), "ß")
    encoded.inline(uri, 1, 0)
    assert engine.texts("suffix") == [f"{WIDE[:8]}ß{WIDE[8:]}\ny"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.sampled_from("a😀é漢\u0301\n\ud83d\ude00"), max_size=12),
    line=st.integers(-2, 2**32),
    character=st.integers(-2, 2**32),
)
def test_u27_any_position_in_any_text_is_answered(encoded, engine, uri, text, line, character):
    text = "a" + text  # of a blank document nothing is asked
    engine.answer = lambda request: script("")  # an item would be remembered, and the engine not asked again
    encoded.open(uri, text)
    encoded.inline(uri, line, character)
    prefix = "".join(engine.texts("prefix"))
    whole = prefix + "".join(engine.texts("suffix"))
    shown = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert len(whole) == len(shown)
    whole.encode()


def test_u27_an_emoji_that_comes_in_two_halves_is_one_character(editor, engine, uri):
    editor.open(uri, "x = ''")
    editor.insert(uri, 2, 0, 5, "\ud83d")
    editor.insert(uri, 3, 0, 6, "\ude00")
    editor.inline(uri, 0, 7)
    assert "".join(engine.texts("prefix")) == "x = '😀"


# Context


def test_u21_context_comes_from_the_buffer_and_follows_each_change(editor, engine, uri, folder):
    path = root_of(folder) / "on_disk.py"
    path.write_text("DISK = 1\n")
    editor.open(path.as_uri(), "BUFFER = 1\n")
    editor.open(uri, "x = ")
    editor.inline(uri, 0, 4)
    assert "BUFFER = 1\n" in engine.texts("file")
    editor.insert(path.as_uri(), 2, 0, 0, "CHANGED_")
    editor.inline(uri, 0, 4)
    assert "CHANGED_BUFFER = 1\n" in engine.texts("file")
    assert "DISK" not in str(engine.requests)
    editor.notify("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
    editor.inline(uri, 0, 3)
    assert "CHANGED_BUFFER" not in str(engine.requests[-1])


def test_other_open_files_come_with_their_path_and_the_repositorys_name(editor, engine, uri, folder):
    other = root_of(folder) / "pkg" / "other.py"
    editor.open(other.as_uri(), "OTHER = 1\n")
    editor.open(uri, "x = ")
    editor.inline(uri, 0, 4)
    segments = engine.requests[-1]["segments"]
    assert segments[0]["role"] == "repo"
    assert segments[0]["text"] == "shop"
    assert ("file", "pkg/other.py", "OTHER = 1\n") in [(s["role"], s["path"], s["text"]) for s in segments]
    assert [s["role"] for s in segments[-2:]] == ["suffix", "prefix"]
    assert segments[-2]["path"] == uri.rsplit("/", 1)[1]


def test_u37_the_status_says_where_the_prompt_differed_from_what_the_engine_held(editor, engine, uri):
    other = uri.replace(".py", "_other.py")
    editor.open(other, "OTHER = 1\n")
    editor.open(uri, "x = ")
    editor.inline(uri, 0, 4)
    last = last_of(editor, uri)
    assert (last["first_difference"], last["difference"]) == (0, "repository")


def test_the_file_worked_in_last_stands_nearest_to_the_current_one(editor, engine, uri):
    first, second = uri.replace(".py", "_a.py"), uri.replace(".py", "_b.py")
    editor.open(first, "A = 1\n")
    editor.open(second, "B = 1\n")
    editor.open(uri, "x = ")
    editor.inline(first, 0, 0)
    editor.inline(uri, 0, 4)
    assert engine.texts("file")[-2:] == ["B = 1\n", "A = 1\n"]


@pytest.mark.parametrize("where", ["untitled:Untitled-1", "file:///elsewhere/deep/a.py", "vscode-notebook-cell:/a#1"])
def test_u24_untitled_documents_and_files_outside_the_workspace_are_completed(editor, engine, where, uri):
    editor.open(uri, "INSIDE = 1\n")
    editor.open(where, "x = ")
    (item,) = editor.inline(where, 0, 4)
    assert item["insertText"] == "value"
    # Nothing crosses a root, and a folder outside the workspace isn't told.
    assert [segment["role"] for segment in engine.requests[-1]["segments"]] == ["suffix", "prefix"]
    assert engine.requests[-1]["segments"][0]["path"] == ("a.py" if where.startswith("file:") else None)
    editor.notify("textDocument/didClose", {"textDocument": {"uri": where}})


@pytest.mark.parametrize("text", ["", "\n", "\r\n \t\r\n", "\u3000\n\f\n"])
def test_in_a_blank_document_nothing_is_asked_of_the_model(editor, engine, uri, folder, text):
    editor.open((root_of(folder) / "other.py").as_uri(), "OTHER = 1\n")
    editor.open(uri, text)
    assert editor.inline(uri, 0, 0) == []
    assert editor.popup(uri, 0, 0) == []
    assert last_of(editor, uri)["reason"] == "blank"
    assert engine.requests == []
    editor.insert(uri, 2, 0, 0, "x")
    assert len(editor.inline(uri, 0, 1)) == 1


def test_u25_secrets_and_ignored_files_are_neither_completed_nor_context(editor, engine, uri, folder):
    root = root_of(folder)
    (root / ".gitignore").write_text("local_*.py\n")
    hidden = [root / ".env", root / "local_settings.py", root / "tls.key"]
    for path in hidden:
        editor.open(path.as_uri(), "CANARY = 'f00d'\n")
        assert editor.inline(path.as_uri(), 0, 3) == []
        assert last_of(editor, path.as_uri())["reason"] == "excluded"
    editor.open(uri, "x = ")
    editor.inline(uri, 0, 4)
    assert engine.requests
    assert "CANARY" not in str(engine.requests)
    assert "CANARY" not in str(editor.messages) + str(editor.stderr)


def test_u20_every_source_can_be_switched_off(own_server, engine, folder, uri):
    editor = own_server()
    off = {"open_files": False, "definitions": False, "path": False, "repository": False}
    editor.initialize(
        root=root_of(folder), settings={"debounce_ms": 0, "sources": off, "alternatives": 1, "prefetch": False}
    )
    editor.wait_ready()
    editor.open((root_of(folder) / "other.py").as_uri(), "OTHER = 1\n")
    text = "x = 1\r\ny = <|fim_middle|>é\r\nz\tz\r\n"
    editor.open(uri, text)
    editor.inline(uri, 1, 4)
    segments = engine.requests[-1]["segments"]
    assert {segment["role"] for segment in segments} == {"suffix", "prefix"}
    assert {segment["path"] for segment in segments} == {None}
    assert "".join(engine.texts("prefix") + engine.texts("suffix")) == text.replace("\r\n", "\n")
    # Sources one by one, while the server runs.
    editor.notify("workspace/didChangeConfiguration", {"settings": {"draftline": {"sources": {"open_files": True}}}})
    editor.inline(uri, 1, 3)
    assert engine.texts("file") == ["OTHER = 1\n"]
    assert engine.texts("repo") == []


def test_the_prompt_becomes_shorter_when_the_engine_proves_slow(own_server, folder, engine, uri):
    engine.answer = lambda request: script("", counters={"prefilled": 500, "prefill_tokens_per_second": 100.0})
    editor = own_server()
    editor.initialize(root=root_of(folder), settings={"debounce_ms": 0, "alternatives": 1, "prefetch": False})
    editor.wait_ready()
    editor.open(uri, "".join(f"value_{n} = {n}\n" for n in range(900)))
    for line in range(450, 456):
        editor.inline(uri, line, 0)
    first, *_, last = [sum(len(part["text"]) for part in request["segments"]) for request in engine.requests]
    assert last < 0.5 * first


def test_u05_a_context_too_short_for_the_answer_is_an_error_that_says_so(own_server, folder, engine, uri):
    engine.health["context_length"] = 100
    try:
        editor = own_server()
        editor.initialize(root=root_of(folder), settings={"max_tokens": 200})
        editor.wait_ready()
        editor.open(uri, "x = ")
        assert editor.inline(uri, 0, 4) == []
        last = last_of(editor, uri)
        assert last["reason"] == "error"
        assert "budget is -" in last["detail"]
    finally:
        engine.health["context_length"] = 4096


def test_u22_roots_that_come_and_go_while_the_server_runs_decide_what_is_context(editor, engine, folder):
    bank = folder / "bank"
    bank.mkdir(exist_ok=True)
    other, current = (bank / "other.py").as_uri(), (bank / "current.py").as_uri()
    editor.open(other, "OTHER = 1\n")
    editor.open(current, "x = ")
    editor.inline(current, 0, 4)
    assert engine.texts("file") == []
    folders = [{"uri": bank.as_uri(), "name": "bank"}]
    for added, removed, context in ((folders, [], ["OTHER = 1\n"]), ([], folders, [])):
        event = {"event": {"added": added, "removed": removed}}
        editor.notify("workspace/didChangeWorkspaceFolders", event)
        editor.inline(current, 0, 3 if added else 2)
        assert engine.texts("file") == context
