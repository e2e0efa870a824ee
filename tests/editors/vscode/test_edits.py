"""Edits in a real VS Code: the diff of the document and of what it would become, and what is taken of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from edits import fenced
from fake_engine import FakeEngine, Script, script
from window import Window

HEALTH = {"chat": True}
TEXT = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
NEW = ("a = 1", "b = 20", "c = 3", "d = 4", "e = 50", "f = 6")


@pytest.fixture(autouse=True)
def no_edit_left(window: Window) -> Iterator[None]:
    yield
    if window.js("return await page.$('.monaco-diff-editor') !== null"):  # elsewhere the key is VS Code's own
        window.press("Control+Alt+Backspace")
    window.press("Escape")


def lines(window: Window, side: str) -> list[str]:
    """The lines of one side of the diff on the screen; none where there is no diff."""
    selector = f".monaco-diff-editor .editor.{side} .lines-content > .view-lines > .view-line"
    found = window.js(
        f"return await page.$$eval({json.dumps(selector)}, all => all"
        ".sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top)).map(one => one.textContent))"
    )
    return [line.replace("\u00a0", " ").replace("\u00b7", " ") for line in found if line]


def wait_proposed(window: Window, *wanted: str) -> None:
    window.wait(lambda: lines(window, "modified") == list(wanted), f"{wanted} and not {lines(window, 'modified')}")


def wait_closed(window: Window) -> None:
    window.wait(lambda: window.js("return await page.$('.monaco-diff-editor') === null"), "the diff to be closed")


def click_tab(window: Window, name: str) -> None:
    window.js(f"await page.click('.tab[data-resource-name=\"{name}\"]')")
    window.js("await page.click('.editor-group-container.active .monaco-editor .view-lines')")


def click_action(window: Window, title: str) -> None:
    window.js(f"await page.click('.editor-actions .action-label[aria-label^={json.dumps(title)}]')")


def ask(window: Window, instruction: str) -> None:
    window.press("Control+A")
    window.press("Control+Alt+E")
    focused = "document.activeElement !== null && document.activeElement.closest('.quick-input-widget') !== null"
    window.js(f"await page.waitForFunction({json.dumps(focused)})")
    window.type(instruction, delay=5)
    window.press("Enter")


def message(window: Window, words: str) -> None:
    script = "return await page.$$eval('.notification-list-item-message', all => all.map(one => one.textContent))"
    window.wait(lambda: any(words in text for text in window.js(script)), f"a message with {words!r}")


def test_an_edit_is_shown_as_a_diff_and_taken(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    path = window.new_file("taken.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    window.screenshot("edit")
    assert engine.requests[-1]["segments"][-1]["text"].endswith("change the numbers\n")
    assert path.read_text() == TEXT
    window.press("Control+Alt+Enter")
    wait_closed(window)
    assert window.saved(path) == "".join(f"{line}\n" for line in NEW)


def test_changes_are_taken_and_left_one_by_one(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    path = window.new_file("chosen.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    window.press("Control+Home")
    window.press("Control+Alt+R")
    wait_proposed(window, "a = 1", "b = 2", *NEW[2:])
    window.press("Control+Alt+A")
    wait_closed(window)
    assert window.saved(path) == "a = 1\nb = 2\nc = 3\nd = 4\ne = 50\nf = 6\n"


def test_changes_behind_one_that_was_taken_keep_their_place(window: Window, engine: FakeEngine) -> None:
    longer = ("a = 1", "b = 20", "b2 = 21", "b3 = 22", "c = 3", "d = 4", "e = 50")
    engine.answer = lambda request: script(fenced(*longer))
    path = window.new_file("behind.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *longer)
    window.press("Control+Home")
    window.press("Control+Alt+A")
    window.wait(lambda: "b3 = 22" in lines(window, "original"), "the first change in the document")
    assert lines(window, "modified") == list(longer)
    window.press("Control+Alt+A")
    wait_closed(window)
    assert window.saved(path) == "".join(f"{line}\n" for line in longer)


def test_the_buttons_above_the_diff_take_and_leave_changes(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    path = window.new_file("buttons.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    window.press("Control+Home")
    click_action(window, "Reject the Change at the Cursor")
    wait_proposed(window, "a = 1", "b = 2", *NEW[2:])
    click_action(window, "Accept the Edit")
    wait_closed(window)
    assert window.saved(path) == "a = 1\nb = 2\nc = 3\nd = 4\ne = 50\nf = 6\n"


def test_no_change_is_taken_or_left_by_a_cursor_in_another_document(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    window.new_file("other.py", "q = 1\n")
    path = window.new_file("elsewhere.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    for key in ("Control+Alt+A", "Control+Alt+R"):
        click_tab(window, "other.py")
        wait_closed(window)  # behind the other tab
        window.press(key)
        wait_proposed(window, *NEW)  # brought to the front, with all of its changes
    window.press("Control+Alt+Backspace")
    wait_closed(window)
    assert window.saved(path) == TEXT


@pytest.mark.parametrize("key", ["Enter", "Backspace"])
def test_a_document_in_a_preview_tab_is_there_again_afterwards(window: Window, engine: FakeEngine, key: str) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    name = f"preview_{key}.py".lower()
    window.new_file("before.py", TEXT)
    (window.work / name).write_text(TEXT)
    window.click_file(name)
    click_tab(window, name)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    window.press(f"Control+Alt+{key}")
    wait_closed(window)
    active = "return await page.$eval('.tab.active', one => one.dataset.resourceName)"
    window.wait(lambda: window.js(active) == name, f"the tab of {name}")
    assert window.saved(window.work / name) == ("".join(f"{line}\n" for line in NEW) if key == "Enter" else TEXT)


def test_rejecting_leaves_the_document_as_it_was(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    path = window.new_file("rejected.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    window.press("Control+Alt+Backspace")
    wait_closed(window)
    assert window.js("return await page.$('.tab.active.dirty') === null")
    assert path.read_text() == TEXT


def test_an_edit_is_shown_while_it_is_written_and_stopped_when_it_is_closed(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: Script(pieces=["```python\na = 1\nb = 20\nc = 3\n"], hang=True)
    window.new_file("stopped.py", TEXT)
    before = len(engine.cancelled)
    ask(window, "change the numbers")
    wait_proposed(window, "a = 1", "b = 20", "c = 3", "d = 4", "e = 5")
    window.press("Control+Alt+Backspace")
    wait_closed(window)
    engine.wait_until(lambda: any(request["priority"] == "edit" for request in engine.cancelled[before:]))


def test_an_edit_is_stopped_before_there_is_anything_to_see(window: Window, engine: FakeEngine) -> None:
    """By the same key, which otherwise removes the brackets at the cursor."""
    engine.answer = lambda request: Script(hang=True)
    path = window.new_file("early.py", "(a)")
    before = len(engine.cancelled)
    ask(window, "change the name")
    engine.wait_until(lambda: len(engine.requests) == 1)
    window.press("Control+Alt+Backspace")
    engine.wait_until(lambda: len(engine.cancelled) > before)
    assert window.js("return await page.$('.tab.active.dirty') === null")
    assert window.saved(path) == "(a)"


def test_a_newer_edit_takes_the_place_of_an_older_one(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    path = window.new_file("twice.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    engine.answer = lambda request: script(fenced("z = 0"))
    click_tab(window, "twice.py")
    ask(window, "only one")
    wait_proposed(window, "z = 0")
    window.press("Control+Alt+Enter")
    wait_closed(window)
    assert window.saved(path) == "z = 0\n"


def test_closing_the_diff_rejects_the_edit(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: Script(pieces=["```python\na = 1\nb = 20\nc = 3\n"], hang=True)
    path = window.new_file("shut.py", TEXT)
    before = len(engine.cancelled)
    ask(window, "change the numbers")
    wait_proposed(window, "a = 1", "b = 20", "c = 3", "d = 4", "e = 5")
    window.js("await page.click('.tab.active .tab-actions a')")
    wait_closed(window)
    engine.wait_until(lambda: any(request["priority"] == "edit" for request in engine.cancelled[before:]))
    assert window.js("return await page.$('.tab.active[data-resource-name=\"shut.py\"]') !== null")
    assert path.read_text() == TEXT


def test_a_text_that_has_changed_is_never_overwritten(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    path = window.new_file("newer.py", TEXT)
    ask(window, "change the numbers")
    wait_proposed(window, *NEW)
    path.write_text("x" + TEXT)  # another program: a document without changes follows its file
    wait_closed(window)
    message(window, "the edit is withdrawn")
    assert path.read_text() == "x" + TEXT
    assert window.js("return await page.$('.tab.active.dirty') === null")


def test_what_is_refused_is_told(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script("No.", reason="end")
    path = window.new_file("refused.py", TEXT)
    ask(window, "change the numbers")
    message(window, "the answer holds no code between fences")
    assert path.read_text() == TEXT


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_the_diff_of_what_is_refused_in_the_end_goes(window: Window, engine: FakeEngine, pause: float) -> None:
    """However fast that is: VS Code may still be opening the diff."""
    pieces = ["```python\na = 1\nb = 20\nc = 3\n", "d = (\n```\n"]
    engine.answer = lambda request: Script(pieces=list(pieces), pause=pause)
    path = window.new_file(f"broken{pause}.py", TEXT)
    ask(window, "change the numbers")
    engine.wait_until(lambda: len(engine.requests) == 2)  # asked once more
    message(window, "a syntax error")
    time.sleep(2)  # a diff that was being opened is there now: without this, the fault could go unseen
    tabs = "return await page.$$eval('.tab', all => all.map(one => one.ariaLabel).join())"
    window.wait(lambda: "Draftline" not in window.js(tabs), "the diff to be closed")
    assert path.read_text() == TEXT
    assert window.js("return await page.$('.tab.active.dirty') === null")


def test_the_cell_of_a_notebook_is_edited(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced("import shop", "x = 20"))
    path = window.new_notebook("edited.ipynb", "import shop\nx = 1")
    window.js("await page.locator('.notebookOverlay .cell-editor-container .view-lines').last().click()")
    ask(window, "change the number")
    wait_proposed(window, "import shop", "x = 20")
    title = "return await page.$eval('.tab.active', one => one.ariaLabel)"
    assert window.js(title).startswith("edited.ipynb (Draftline)")
    language = "return await page.$eval('.statusbar-item[id=\"status.editor.mode\"]', one => one.textContent)"
    window.wait(lambda: "Python" in window.js(language), "the cell's language on both sides")
    window.press("Control+Alt+Enter")
    wait_closed(window)
    window.press("Control+S")
    window.wait(lambda: "x = 20" in path.read_text(), "the notebook to be saved")
    assert json.loads(path.read_text())["cells"][0]["source"] == ["import shop\n", "x = 20"]


def test_code_actions_come_through_the_diff(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script(fenced(*NEW))
    window.new_file("action.py", TEXT)
    window.press("Control+A")
    window.press("Control+.")
    window.js("await page.waitForSelector('.action-widget .monaco-list-row')")
    row = ".action-widget .monaco-list-row:has-text('Draftline: write documentation')"
    window.wait(lambda: window.js(f"return await page.$({json.dumps(row)}) !== null"), "the code action")
    window.js(f"await page.click({json.dumps(row)})")
    wait_proposed(window, *NEW)
    assert "documentation comment" in engine.requests[-1]["segments"][-1]["text"]


def test_an_explanation_is_a_document_of_its_own(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script("It sets five numbers.")
    window.new_file("explained.py", TEXT)
    window.press("Control+A")
    window.press("Control+.")
    row = ".action-widget .monaco-list-row:has-text('Draftline: explain')"
    window.wait(lambda: window.js(f"return await page.$({json.dumps(row)}) !== null"), "the code action")
    window.js(f"await page.click({json.dumps(row)})")
    shown = "return await page.$$eval('.view-line', all => all.map(one => one.textContent).join('\\n'))"
    window.wait(lambda: "It sets five numbers." in window.js(shown).replace("\u00a0", " "), "the explanation")
    window.run("View: Close All Editors")
    window.press("Escape")


def test_the_next_edit_repeats_the_last_one_elsewhere(window: Window, engine: FakeEngine) -> None:
    path = window.new_file("next.py", "def area(w):\n    return w\n\n\nprint(area(1))\n")
    window.press("Control+Alt+N")
    message(window, "repeat nowhere")
    window.press("Control+Home")
    for _ in range(4):
        window.press("ArrowRight")
    window.press("Control+Delete")
    window.type("surface")
    pseudo = (
        "[...document.querySelectorAll('.view-line span')].map(one => getComputedStyle(one, '::after').content).join()"
    )
    shown = f"return await page.evaluate({json.dumps(pseudo)})"
    window.wait(lambda: "area became surface: 1 more" in window.js(shown).replace("\u00a0", " "), "the hint")
    window.press("Control+Alt+N")
    wait_proposed(window, "def surface(w):", "    return w", "print(surface(1))")
    window.press("Control+Alt+Enter")
    wait_closed(window)
    assert window.saved(path) == "def surface(w):\n    return w\n\n\nprint(surface(1))\n"
