"""The next edit: where the last change is repeated, and that nothing else is ever touched."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from language_server import root_of

from bench.lsp_client import LspClient, LspError
from lsp.completer import Completer
from lsp.documents import Change, DocumentStore
from lsp.edit.editor import EditOutcome
from lsp.edit.hunks import Hunk
from lsp.next_edit.features import PAUSE_S, NextEdit
from lsp.next_edit.repetition import Substitution, places, substitution_of
from lsp.workspace import Workspace

TEXT = "def area(w, h):\n    return w * h\n\n\nprint(area(1, 2))\nprint(areas, area)\n"
URI = "untitled:a.py"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("def area(w):", "def surface(w):", ("area", "surface")),
        ("x = total", "x = total_sum", ("total", "total_sum")),
        ("x = my_total", "x = my_count", ("my_total", "my_count")),
        ("f(load(a))", "f(load(a, b))", ("load(a)", "load(a, b)")),
        ("x = items.get(k)", "x = items[k]", ("get(k)", None)),
        ("x = 1", "x = 2", None),
        ("a + b", "a - b", None),
        ("", "x", None),
        ("x = f", "x = g", None),
        ("call()", "call(timeout)", ("call()", "call(timeout)")),
    ],
)
def test_what_was_replaced_is_whole_words(old: str, new: str, expected: tuple[str, str | None] | None) -> None:
    found = substitution_of(old, new)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.apply(old) == new
        assert expected[0] in found.old
        if expected[1]:
            assert (found.old, found.new) == expected


def test_only_whole_words_are_replaced_and_not_where_the_change_was_made() -> None:
    rule = Substitution("area", "surface")
    lines = ["area(area)", "areas", "my_area", "x.area", "area"]
    assert places(lines, rule, {4}) == [Hunk(0, 1, ("surface(surface)",)), Hunk(3, 4, ("x.surface",))]


def test_a_word_that_stands_everywhere_is_no_name() -> None:
    assert places(["self.x"] * 60, Substitution("self", "this"), ()) == []


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A document that is edited."""

    def __init__(self, text: str) -> None:
        self.documents, self.clock = DocumentStore(), Clock()
        self.next_edit = NextEdit(Completer(self.documents, Workspace(), link=None), self.clock)  # type: ignore[arg-type]
        self.documents.open(URI, text, 1, "python")
        self.next_edit.changed(URI)

    @property
    def lines(self) -> list[str]:
        document = self.documents.get(URI)
        assert document is not None
        return list(document.snapshot().source.lines)

    def replace(self, line: int, new: str, after: float = 1.0) -> None:
        document = self.documents.get(URI)
        assert document is not None
        self.clock.now += after
        document.apply([Change(new, (line, 0), (line, len(self.lines[line])))], document.version + 1, "utf-32")
        self.next_edit.changed(URI)

    def at(self, line: int) -> EditOutcome:
        return self.next_edit.at(URI, line, 0)


def test_a_renamed_definition_is_renamed_where_it_is_used() -> None:
    desk = Desk(TEXT)
    desk.replace(0, "def surface(w, h):")
    outcome = desk.at(0)
    assert (outcome.reason, outcome.detail) == ("ready", "area became surface")
    assert outcome.hunks == (Hunk(4, 5, ("print(surface(1, 2))",)), Hunk(5, 6, ("print(areas, surface)",)))


def test_typing_letter_by_letter_is_one_change_and_a_pause_begins_another() -> None:
    desk = Desk(TEXT)
    for name in ("are", "ar", "su", "surf", "surface"):
        desk.replace(0, f"def {name}(w, h):")
    assert len(desk.at(0).hunks) == 2
    desk.replace(1, "    return h * w", after=40)
    assert desk.at(1).reason == "none"


def test_u10_what_was_just_typed_or_taken_back_is_never_undone() -> None:
    desk = Desk(TEXT)
    desk.replace(0, "def surface(w, h):")
    desk.replace(0, "def area(w, h):")
    assert desk.at(0).reason == "none"
    desk.replace(0, "def surface(w, h):")
    desk.replace(4, "print(area(1, 3))")
    assert {hunk.start for hunk in desk.at(0).hunks} == {5}, "lines changed by hand stay"


def test_u10_and_u11_no_edit_reverses_another_deletes_a_line_or_adds_an_error() -> None:
    chance, offered, reversed_ = random.Random(7), 0, 0
    names = ["alpha", "beta", "gamma", "delta"]
    for _ in range(300):
        desk = Desk(
            "\n".join(f"{chance.choice(names)} = {chance.choice(names)}({chance.choice(names)})" for _ in range(8))
        )
        for _ in range(chance.randrange(1, 4)):
            row = chance.randrange(8)
            line = desk.lines[row]
            desk.replace(row, line.replace(chance.choice(names), chance.choice([*names, "omega"]), 1))
        before = desk.lines
        touched = {hunk.start for hunk in desk.next_edit._recent.hunks(URI)[1]}
        outcome = desk.at(chance.randrange(8))
        offered += outcome.reason == "ready"
        for hunk in outcome.hunks:
            assert hunk.end - hunk.start == len(hunk.lines) == 1
            reversed_ += hunk.start in touched
            old, _, new = outcome.detail.partition(" became ")
            assert hunk.lines[0] == Substitution(old, new).apply(before[hunk.start])
    assert offered > 100
    assert reversed_ == 0


def test_u11_places_that_would_no_longer_parse_are_left_out() -> None:
    desk = Desk("x = alpha\nprint(alpha)\nf(alpha=2)\nalpha = 3\n")
    desk.replace(0, "x = not beta")
    assert desk.at(0).hunks == (Hunk(1, 2, ("print(not beta)",)),)


def test_a_long_document_is_not_followed() -> None:
    desk = Desk("area = 1\n" * 20_001)
    desk.replace(0, "surface = 1")
    assert desk.at(0).reason == "none"


# Through the server


def ask(editor: LspClient, uri: str, line: int) -> dict[str, Any]:
    params = {"textDocument": {"uri": uri}, "position": {"line": line, "character": 0}}
    result: dict[str, Any] = editor.request("draftline/nextEdit", params)
    return result


def test_the_editor_gets_edits_for_the_version_it_has(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    editor.open(uri, TEXT)
    where = {"start": {"line": 0, "character": 4}, "end": {"line": 0, "character": 8}}
    editor.change(uri, 2, {"range": where, "text": "surface"})
    answer = ask(editor, uri, 0)
    assert (answer["reason"], answer["version"]) == ("ready", 2)
    assert [edit["newText"] for edit in answer["edits"]] == ["print(surface(1, 2))\n", "print(areas, surface)\n"]
    assert engine.requests == [], "no engine is asked"
    assert "surface" not in str(editor.sent("window/logMessage")[-1])


def test_documents_that_are_not_edited_and_bad_parameters(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    assert ask(editor, uri, 0)["reason"] == "excluded"
    with pytest.raises(LspError, match="nextEdit needs"):
        editor.request("draftline/nextEdit", {"textDocument": {"uri": uri}})


def rename(editor: LspClient, uri: str, version: int, name: str, old: str) -> None:
    where = {"start": {"line": 0, "character": 4}, "end": {"line": 0, "character": 4 + len(old)}}
    editor.change(uri, version, {"range": where, "text": name})


def test_other_editors_are_told_nothing(editor: LspClient, engine: FakeEngine, uri: str) -> None:
    editor.open(uri, TEXT)
    rename(editor, uri, 2, "surface", "area")
    time.sleep(PAUSE_S + 0.3)
    assert editor.sent("draftline/nextEditAvailable") == []


def test_an_editor_that_shows_edits_is_told_of_the_next_one_and_when_it_is_over(
    own_server: Callable[..., LspClient], folder: Path, uri: str
) -> None:
    engine = FakeEngine(folder / "run")
    client = own_server()
    client.initialize(root=root_of(folder), capabilities={"experimental": {"draftline": {"edits": True}}})
    client.wait_ready()
    client.open(uri, TEXT)
    rename(client, uri, 2, "surface", "area")
    told = client.wait_for("draftline/nextEditAvailable")
    assert told == {"uri": uri, "version": 2, "places": 2, "detail": "area became surface"}
    rename(client, uri, 3, "area", "surface")
    told = client.wait_for("draftline/nextEditAvailable", lambda params: params["version"] == 3)
    assert (told["places"], told["detail"]) == (0, "")
    client.notify("workspace/didChangeConfiguration", {"settings": {"draftline": {"next_edit": False}}})
    rename(client, uri, 4, "surface", "area")
    assert ask(client, uri, 0)["reason"] == "ready"
    time.sleep(PAUSE_S + 0.3)
    assert len(client.sent("draftline/nextEditAvailable")) == 2
    engine.close()
