"""What editors do with an item: several to choose from, parts of it, a popup's selection, what was dismissed."""

import pytest
from fake_engine import Script, script

from bench.lsp_client import LspError
from lsp.parts import next_part


def reason(editor, uri):
    return editor.wait_for("draftline/status", lambda s: s["last"] and s["last"]["uri"] == uri)["last"]["reason"]


def data_of(item):
    return item["command"]["arguments"][0]


def parts(text, part):
    found = []
    while text:
        found.append(next_part(text, part))
        text = text[len(found[-1]) :]
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compute(a, b_2)", ["compute", "(", "a", ",", " b_2", ")"]),
        ("\n    return x != y", ["\n    return", " x", " !=", " y"]),
        ("e\u0301te\u0301 = 1", ["e\u0301te\u0301", " =", " 1"]),
        ("'👩\u200d💻'漢字", ["'👩\u200d💻'", "漢字"]),
        ("x \n", ["x", " \n"]),
    ],
)
def test_u16_words_end_at_the_borders_of_names_and_punctuation(text, words):
    assert parts(text, "word") == words


def test_u16_lines_come_with_the_breaks_that_lead_to_them():
    assert parts("a + b\n    c\n\nd", "line") == ["a + b", "\n    c", "\n\nd"]


def test_u16_the_next_part_is_served_from_memory_with_lengths_in_utf16(editor, engine, uri):
    engine.answer = lambda request: script("'😀' + value\n    more")
    editor.open(uri, "x = \r\ny")
    (item,) = editor.inline(uri, 0, 4)
    found, length = [], 0
    while True:
        part = editor.request(
            "draftline/nextPart", {"id": data_of(item)["id"], "part": "word", "acceptedLength": length}
        )
        if part is None:
            break
        found.append(part["text"])
        length = part["acceptedLength"]
        assert "".join(found) + part["rest"] == item["insertText"]
    assert found == ["'😀'", " +", " value", "\r\n    more"]
    assert length == len(item["insertText"].encode("utf-16-le")) // 2
    line = editor.request("draftline/nextPart", {"id": data_of(item)["id"], "part": "line"})
    assert (line["text"], line["rest"]) == ("'😀' + value", "\r\n    more")
    assert len(engine.requests) == 1


def test_u16_after_a_part_was_accepted_the_rest_is_offered_without_the_engine(editor, engine, uri):
    engine.answer = lambda request: script("compute(a)")
    editor.open(uri, "x = ")
    (item,) = editor.inline(uri, 0, 4)
    part = editor.request("draftline/nextPart", {"id": data_of(item)["id"], "part": "word"})
    editor.insert(uri, 2, 0, 4, part["text"])
    (rest,) = editor.inline(uri, 0, 4 + part["acceptedLength"], automatic=True)
    assert rest["insertText"] == part["rest"] == "(a)"
    assert data_of(rest)["cached"]
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "params",
    [{}, {"id": 3, "part": "word"}, {"id": "1", "part": "page"}, {"id": "1", "part": "word", "acceptedLength": -1}],
)
def test_a_request_for_a_part_that_makes_no_sense_is_refused(editor, params):
    with pytest.raises(LspError) as refused:
        editor.request("draftline/nextPart", params)
    assert refused.value.code == -32602


def test_the_part_of_an_item_that_is_forgotten_or_of_no_place_in_it_is_nothing(editor, engine, uri):
    editor.open(uri, "x = ")
    engine.answer = lambda request: script("'😀'")
    (item,) = editor.inline(uri, 0, 4)
    for params in (
        {"id": "none"},
        {"id": data_of(item)["id"], "acceptedLength": 2},
        {"id": "1", "acceptedLength": 999},
    ):
        assert editor.request("draftline/nextPart", {"part": "word", **params}) is None


def test_what_became_of_an_item_is_one_line_in_the_log(editor, engine, uri):
    editor.open(uri, "x = ")
    (item,) = editor.inline(uri, 0, 4)
    name = data_of(item)["id"]
    after = len(editor.messages)
    editor.notify("draftline/didShow", {"id": name})
    editor.notify("draftline/didPartiallyAccept", {"id": name, "acceptedLength": 2})
    editor.notify("draftline/didPartiallyAccept", {"id": name, "acceptedLength": 99})
    editor.notify("draftline/didDismiss", {"id": name})
    editor.notify("draftline/didDismiss", {})
    editor.request("workspace/executeCommand", item["command"])
    lines = [params["message"] for _, params in editor.sent("window/logMessage", after)]
    assert lines == [
        f"item shown id={name}",
        f"item accepted in part id={name} length=2",
        "draftline/didPartiallyAccept needs a length that is a place in the item",
        f"item dismissed id={name}",
        "draftline/didDismiss needs the id of an item; it was left out",
        "item accepted",
    ]


def test_u12_what_was_dismissed_is_offered_again_when_asked_for_or_after_a_change(editor, engine, uri):
    editor.open(uri, "x = ")
    (item,) = editor.inline(uri, 0, 4, automatic=True)
    editor.notify("draftline/didDismiss", {"id": data_of(item)["id"]})
    assert editor.inline(uri, 0, 4, automatic=True) == []
    assert len(editor.inline(uri, 0, 4)) == 1
    assert editor.inline(uri, 0, 4, automatic=True) == []
    editor.insert(uri, 2, 0, 0, "y")
    assert len(editor.inline(uri, 0, 5, automatic=True)) == 1


def test_several_different_items_are_made_when_asked_for_by_hand(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 3}})
    texts = iter(["first", "second", "first", "second", "third", "fourth"])
    engine.answer = lambda request: script(next(texts))
    editor.open(uri, "x = ")
    shown = [item["insertText"] for item in editor.inline(uri, 0, 4)]
    assert shown == ["first", "second", "third"]
    heat = [request["sampling"]["temperature"] for request in engine.requests]
    assert heat[0] == 0
    assert all(heat[1:])
    assert len({request["sampling"]["seed"] for request in engine.requests}) == len(engine.requests) == 5
    assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == shown  # from memory
    editor.insert(uri, 2, 0, 4, "sec")
    assert [item["insertText"] for item in editor.inline(uri, 0, 7, automatic=True)] == ["ond"]
    assert len(engine.requests) == 5
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 1}})


def test_the_item_on_the_screen_stays_the_first_when_others_are_asked_for(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 2}})
    texts = iter(["compute(a)", "sum(a)", "pute(b)"])
    engine.answer = lambda request: script(next(texts))
    editor.open(uri, "x = ")
    assert [item["insertText"] for item in editor.inline(uri, 0, 4, automatic=True)] == ["compute(a)"]
    assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == ["compute(a)", "sum(a)"]
    editor.insert(uri, 2, 0, 4, "com")
    assert [item["insertText"] for item in editor.inline(uri, 0, 7)] == ["pute(a)", "pute(b)"]
    assert [request["sampling"]["temperature"] > 0 for request in engine.requests] == [False, True, True]
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 1}})


def test_an_engine_that_fails_at_an_alternative_leaves_the_first_item(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 3}})
    answers = iter([script("first"), script("", error=(500, "internal", "out of memory"))])
    engine.answer = lambda request: next(answers)
    editor.open(uri, "x = ")
    assert [item["insertText"] for item in editor.inline(uri, 0, 4)] == ["first"]
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 1}})


def test_while_one_types_there_is_one_item_and_one_request(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 3}})
    editor.open(uri, "x = ")
    assert len(editor.inline(uri, 0, 4, automatic=True)) == 1
    assert len(engine.requests) == 1
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 1}})


# Where nothing is offered


@pytest.mark.parametrize(("column", "offered"), [(0, True), (2, False), (5, True), (6, True), (9, False), (10, True)])
def test_nothing_is_offered_inside_a_name_unless_asked_for(editor, engine, uri, column, offered):
    uri = uri.replace(".py", ".txt")
    editor.open(uri, "names = ab", language="plaintext")
    assert len(editor.inline(uri, 0, column, automatic=True)) == offered
    assert len(engine.requests) == offered
    if not offered:
        assert reason(editor, uri) == "mid_word"
        assert len(editor.inline(uri, 0, column)) == 1


@pytest.mark.parametrize("scheme", ["output:x", "git:/w/a.py", "vscode-notebook-cell-output:/w/a.ipynb"])
def test_u48_nothing_is_offered_in_what_nobody_can_write_into(editor, engine, scheme):
    editor.open(scheme, "x = ")
    assert editor.inline(scheme, 0, 4) == []
    assert reason(editor, scheme) == "read_only"
    assert engine.requests == []


def test_u48_nothing_is_offered_while_several_cursors_type(editor, engine, uri):
    editor.open(uri, "a = \nb = \n")
    places = [{"start": {"line": n, "character": 4}, "end": {"line": n, "character": 4}} for n in (1, 0)]
    editor.change(uri, 2, *({"range": place, "text": "1"} for place in places))
    assert editor.inline(uri, 0, 5, automatic=True) == []
    assert reason(editor, uri) == "several_cursors"
    editor.insert(uri, 3, 0, 5, " + ")
    assert len(editor.inline(uri, 0, 8, automatic=True)) == 1


# The editor's popup


def selected_inline(editor, uri, line, character, start, text):
    info = {"range": {"start": {"line": line, "character": start}, "end": {"line": line, "character": character}}}
    return editor.request(
        "textDocument/inlineCompletion",
        {
            "textDocument": {"uri": uri},
            "position": {"line": line, "character": character},
            "context": {"triggerKind": 2, "selectedCompletionInfo": {**info, "text": text}},
        },
    )["items"]


def test_u15_an_item_goes_on_from_what_is_selected_in_the_popup(editor, engine, uri):
    engine.answer = lambda request: script("(a, b)")
    editor.open(uri, "😀 = comp\nend")
    (item,) = selected_inline(editor, uri, 0, 9, 5, "compute")
    assert item["insertText"] == "compute(a, b)"
    assert item["range"] == {"start": {"line": 0, "character": 5}, "end": {"line": 0, "character": 9}}
    assert "".join(engine.texts("prefix")) == "😀 = compute"
    editor.change(uri, 2, {"range": item["range"], "text": "compute"})
    (rest,) = editor.inline(uri, 0, 12, automatic=True)
    assert (rest["insertText"], len(engine.requests)) == ("(a, b)", 1)


def test_u15_a_selection_that_is_not_at_the_cursor_gets_nothing(editor, engine, uri):
    editor.open(uri, "x = comp\nend")
    assert selected_inline(editor, uri, 0, 8, 4, "com\npute") == []
    assert engine.requests == []


def test_alternatives_end_with_the_requests_time(editor, engine, uri):
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 3, "timeout_ms": 400}})
    engine.answer = lambda request: script("first", counters={"total_ms": 380.0})
    editor.open(uri, "x = ")
    assert len(editor.inline(uri, 0, 4)) == 1
    assert len(engine.requests) == 1
    engine.answer = lambda request: Script(pieces=["other"], counters={"total_ms": 200.0})
    editor.inline(uri, 0, 3)
    assert engine.requests[-1]["timeout_ms"] < 200
    editor.notify("workspace/didChangeConfiguration", {"settings": {"alternatives": 1, "timeout_ms": 5000}})
