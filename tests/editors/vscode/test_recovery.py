"""In VS Code, an engine, a language server or a program that isn't there is told, and what can be mended is."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import write_program
from fake_engine import FakeEngine, script
from window import Window

from server.process.lock import lock_holder

pytestmark = pytest.mark.timeout(300)

RESTART = "Draftline: Restart the Language Server"


def test_a_language_server_that_is_killed_is_started_again(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script("len(items)")
    window.new_file("killed.py", "x = 1\n")
    before = server_process(window)
    os.kill(before, signal.SIGKILL)
    window.wait(lambda: server_process(window) not in (0, before), "another language server")
    window.wait_status("ready")
    window.type("count = ")
    window.wait_ghost("len(items)")


def server_process(window: Window) -> int:
    """The language server's process, by the runtime directory in its environment; 0 while there is none."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = status.read_bytes().split(b"\0")
            there = f"DRAFTLINE_RUNTIME_DIR={window.folder / 'run'}".encode()
            if b"lsp" in words and there in (status.parent / "environ").read_bytes().split(b"\0"):
                return int(status.parent.name)
    return 0


@pytest.fixture
def usual_program(window: Window, engine: FakeEngine, folder: Path) -> Iterator[None]:
    """The language server is the usual one again afterwards."""
    yield
    write_program(folder, folder / "run")
    window.run(RESTART)
    window.wait_status("ready")


@pytest.mark.usefixtures("usual_program")
def test_a_program_that_isnt_there_is_told_with_what_to_do(window: Window, folder: Path) -> None:
    (folder / "draftline").unlink()
    window.run(RESTART)
    window.wait_status("error")
    told = window.wait(lambda: notification(window), "a message")
    assert f"can't start its language server with `{folder / 'draftline'} lsp`" in told
    assert "set draftline.command" in told


@pytest.mark.usefixtures("usual_program")
def test_u45_the_real_engine_is_killed_and_the_next_completion_comes_from_a_new_one(
    window: Window, folder: Path
) -> None:
    """The included model on the CPU; what it writes is its own affair."""
    runtime = folder / "real"
    runtime.mkdir(mode=0o700)
    write_program(folder, runtime, "--model", "embedded")
    window.run(RESTART)
    lock = runtime / "engine.lock"
    try:
        window.wait(lambda: (runtime / "said").exists(), "the other language server")
        window.wait_status("ready", seconds=120)
        before = lock_holder(lock)
        assert before is not None
        path = window.new_file("inventory.py", CODE)
        window.type("        return")
        ghost = window.wait_ghost()
        window.screenshot("real_engine")
        window.press("Tab")
        window.wait(lambda: not window.ghost(), "the grey text to become black")
        assert "".join(window.saved(path).split()).startswith("".join((CODE + "return" + ghost).split()))
        os.kill(before, signal.SIGKILL)
        window.new_file("again.py", CODE)
        window.type("        return")  # finds the engine gone, and has it started again
        window.wait(lambda: lock_holder(lock) not in (None, before), "another engine")
        window.wait_status("ready", seconds=90)
        window.press("Backspace")
        window.type("n")
        assert window.wait_ghost()
    finally:
        with contextlib.suppress(ProcessLookupError):
            if (pid := lock_holder(lock)) is not None:
                os.kill(pid, signal.SIGKILL)


CODE = """class Inventory:
    def __init__(self) -> None:
        self._articles: dict[str, Article] = {}

    def __len__(self) -> int:
"""


def notification(window: Window) -> str:
    found = window.js(
        "return await page.$$eval('.notification-list-item-message', all => all.map(one => one.textContent))"
    )
    return " ".join(found)


def test_u45_a_lost_engine_shows_in_the_status_and_the_next_one_completes(
    window: Window, engine: FakeEngine, folder: Path
) -> None:
    engine.answer = lambda request: script("len(items)")
    window.new_file("lost.py", "x = 1\n")
    engine.die()
    window.type("count = ")
    window.wait_status("engine lost")
    window.screenshot("engine_lost")
    engine.close()
    again = FakeEngine(folder / "run", lambda request: script("len(again)"))
    try:
        window.wait_status("ready")
        window.press("Enter")
        window.type("count = ")
        window.wait_ghost("len(again)")
    finally:
        again.close()
