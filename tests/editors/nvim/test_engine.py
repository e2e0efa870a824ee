"""The engine below a real Neovim: the included model's own text, and an engine that is killed and comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from engine_process import REAL_COMMAND, engine_home
from fake_engine import FakeEngine
from neovim import ROOT, Neovim


def about_the_engine(editor: Neovim) -> list[str]:
    return [line for line in editor.told() if "engine" in line]


def test_u45_an_engine_that_is_lost_and_one_that_comes_back_are_one_message_each(
    version: str, tmp_path: Path, folder: Path
) -> None:
    runtime = folder / "lost"
    engine = FakeEngine(runtime)
    editor = Neovim(version, tmp_path, {"DRAFTLINE_RUNTIME_DIR": str(runtime)})
    second = None
    try:
        editor.set_up("settings = {debounce_ms = 0, timeout_ms = 200}")
        editor.open("lost.py", "x = 1\n")
        engine.die()
        editor.keys("o")
        editor.type("y = ")
        editor.wait_for(lambda: editor.status() == "Draftline: loading")
        editor.type("1 + ")  # the editor takes keys as always
        assert editor.lines[-1] == "y = 1 + "
        assert len(about_the_engine(editor)) == 1
        second = FakeEngine(runtime)
        editor.wait_for(lambda: editor.status().startswith("Draftline: ready"))
        editor.type("2 + ")
        editor.wait_ghost("value")
        assert about_the_engine(editor) == [
            "Draftline: the engine was lost and is being started again",
            "Draftline: the engine is back (fake)",
        ]
    finally:
        editor.close()
        engine.close()
        if second is not None:
            second.close()


@pytest.mark.timeout(240)
def test_the_included_model_writes_ghost_text_and_again_after_its_engine_was_killed(
    version: str, tmp_path: Path
) -> None:
    text = (ROOT / "examples" / "inventory.py").read_text(encoding="utf-8")
    with engine_home(REAL_COMMAND) as home:
        editor = Neovim(version, tmp_path, home.environment)
        try:
            editor.set_up("settings = {timeout_ms = 60000}")
            editor.open("inventory.py", text, seconds=90)
            editor.keys("47G", "S")
            editor.type("return")
            editor.wait_for(editor.ghost, seconds=60)
            editor.keys("<Tab>")
            editor.wait_for(lambda: len(editor.lines[46]) > len("        return "))
            health = home.health()
            assert health is not None
            os.kill(health.pid, signal.SIGKILL)
            editor.keys("<Esc>", "S")
            editor.type("retur")
            editor.wait_for(lambda: len(about_the_engine(editor)) == 2, seconds=90)
            assert editor.status().startswith("Draftline: ready")
            editor.type("n")
            editor.wait_for(editor.ghost, seconds=60)
            after = home.health()
            assert after is not None
            assert after.pid != health.pid
        finally:
            editor.close()
