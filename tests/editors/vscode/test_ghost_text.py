"""Ghost text in a real VS Code: real keys, the real language server, an engine that says what a test wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engine import FakeEngine, script
from window import Window

pytestmark = pytest.mark.timeout(240)


def answers(engine: FakeEngine, after: str, text: str) -> None:
    """The engine answers with ``text`` where the document ends in ``after`` before the cursor, else with nothing."""

    def answer(request: dict[str, object]) -> object:
        parts = request["segments"]
        assert isinstance(parts, list)
        prefix = "".join(part["text"] for part in parts if part["role"] == "prefix")
        return script(text if prefix.endswith(after) else "")

    engine.answer = answer  # type: ignore[assignment]


def test_ghost_text_of_several_lines_is_shown_while_one_types_and_tab_accepts_it(
    window: Window, engine: FakeEngine
) -> None:
    answers(engine, "def add", "(a, b):\n    return a + b\n")
    path = window.new_file("add.py", "import os\n\n")
    window.type("def add")
    window.wait_ghost("returna+b")
    window.screenshot("ghost")
    window.press("Tab")
    window.wait(lambda: not window.ghost(), "the grey text to become black")
    assert window.saved(path).rstrip() == "import os\n\ndef add(a, b):\n    return a + b"


def test_ghost_text_is_accepted_word_by_word_and_the_rest_stays(window: Window, engine: FakeEngine) -> None:
    answers(engine, "total = ", "sum(prices) + taxes")
    path = window.new_file("words.py", "x = 1\n")
    window.type("total = ")
    window.wait_ghost("sum(prices)+taxes")
    window.press("Control+ArrowRight")
    window.wait(lambda: window.ghost() == "(prices)+taxes", "the rest of the grey text")
    assert window.saved(path) == "x = 1\ntotal = sum"


def test_ghost_text_is_accepted_line_by_line(window: Window, engine: FakeEngine) -> None:
    answers(engine, "def area", "(w, h):\n    return w * h\n")
    path = window.new_file("lines.py", "x = 1\n")
    window.type("def area")
    window.wait_ghost("returnw*h")
    window.press("Control+Alt+ArrowRight")
    window.wait(lambda: window.ghost() == "returnw*h", "the second line of the grey text")
    assert window.saved(path).rstrip() == "x = 1\ndef area(w, h):"


def test_what_escape_dismisses_is_not_offered_there_again(
    window: Window, engine: FakeEngine, said: Callable[[], str]
) -> None:
    answers(engine, "count = ", "len(items)")
    window.new_file("dismissed.py", "x = 1\n")
    window.type("count = ")
    window.wait_ghost("len(items)")
    window.press("Escape")
    window.wait(lambda: not window.ghost(), "the grey text to go")
    window.wait(lambda: "item dismissed" in said(), "the server to know")


def test_switched_off_nothing_is_asked_and_the_status_says_so(window: Window, engine: FakeEngine) -> None:
    window.new_file("off.py", "x = 1\n")
    window.run("Draftline: Switch On or Off")
    window.wait_status("off")
    window.js("await page.click('.editor-group-container.active .monaco-editor .view-lines')")
    window.press("Control+End")
    engine.requests.clear()
    window.type("value = ")
    window.run("Draftline: Switch On or Off")
    window.wait_status("ready")
    assert engine.requests == []


def test_u19_the_exact_prompt_is_shown_with_the_source_of_each_part(window: Window, engine: FakeEngine) -> None:
    window.new_file("helper.py", "def helper(a):\n    return a\n")
    window.new_file("uses.py", "from helper import helper\n\ny = ")
    window.run("Draftline: Show the Exact Prompt")
    window.wait(lambda: "open file" in lines(window), "the parts of the prompt")
    text = lines(window)
    assert "uses.py:3:5" in text
    assert "from: open file, helper.py" in text
    assert "from: current" in text
    window.screenshot("prompt")
    window.run("View: Close All Editors")


def test_the_status_has_the_speed_and_the_reuse_of_the_last_answer(window: Window, engine: FakeEngine) -> None:
    answers(engine, "speed = ", "distance / time")
    window.new_file("speed.py", "x = 1\n")
    window.type("speed = ")
    window.wait_ghost("distance/time")
    assert window.wait_status("ready") == "Draftline: ready, 123 tokens/s, 60 % reused"


def test_no_proposed_api_is_used_where_it_is_refused(window: Window) -> None:
    """The canary uses one without leave: were it allowed here, the other tests would prove nothing about it."""
    assert window.wait(window.canary, "the canary") == "canary: refused"


def lines(window: Window) -> str:
    """What all editors show."""
    found = window.js("return await page.$$eval('.monaco-editor .view-line', all => all.map(one => one.textContent))")
    return "\n".join(found).replace("\u00a0", " ")
