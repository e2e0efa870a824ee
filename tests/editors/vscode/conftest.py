"""One window for the tests of a file: its start takes most of the time."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine, script

sys.path.append(str(Path(__file__).parent))

from window import Window


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path: a socket's may have 103 bytes."""
    path = Path(tempfile.mkdtemp(prefix="dl-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def write_program(folder: Path, runtime: Path, *more: str) -> Path:
    """The program that the window starts as its language server: that of this checkout, with a runtime directory of the
    test's own. What it says is kept there."""
    line = shlex.join([sys.executable, "-P", "-m", "server.cli", "lsp", *more])
    program = folder / "draftline"
    program.write_text(f"#!/bin/sh\nexport DRAFTLINE_RUNTIME_DIR={runtime}\n{line} | tee -a {runtime}/said\n")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def running(folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Window, FakeEngine]]:
    """A module's HEALTH is what the engine says of itself."""
    engine = FakeEngine(folder / "run", **getattr(request.module, "HEALTH", {}))
    program = write_program(folder, folder / "run")
    settings = {"draftline.command": [str(program), "lsp"], "draftline.timeout_ms": 30_000, "draftline.debounce_ms": 0}
    settings["draftline.prefetch"] = False  # tests count the requests of typing
    window = Window(folder, settings)
    try:
        window.wait_status("ready", seconds=90)
        yield window, engine
    finally:
        window.close()
        engine.close()


@pytest.fixture
def window(running: tuple[Window, FakeEngine], request: pytest.FixtureRequest) -> Iterator[Window]:
    """The window, back in its usual state. What it looks like at the end of a test is kept as a picture."""
    window = running[0]
    yield window
    window.screenshot(request.node.name.removeprefix("test_"))
    for _ in range(3):
        window.press("Escape")


@pytest.fixture
def engine(running: tuple[Window, FakeEngine]) -> FakeEngine:
    engine = running[1]
    engine.answer = lambda request: script("")
    engine.requests.clear()
    return engine


@pytest.fixture
def said(running: tuple[Window, FakeEngine], folder: Path) -> Callable[[], str]:
    """What the language server has said so far."""
    return lambda: (folder / "run" / "said").read_text(encoding="utf-8", errors="replace")
