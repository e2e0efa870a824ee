"""Real Neovims, of both kinds of ghost text, the real language server, and an engine that says what a test wants."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine, script
from neovim import VERSIONS, Neovim, install_nvim

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not install_nvim.supported():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no Neovim is pinned for this system"))


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path: a socket's may have 103 bytes."""
    path = Path(tempfile.mkdtemp(prefix="dl-"))
    (path / "work").mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def running(version: str, folder: Path) -> Iterator[tuple[Neovim, FakeEngine]]:
    """One Neovim for a module and version."""
    engine = FakeEngine(folder / "run")
    editor = Neovim(version, folder / "work", {"DRAFTLINE_RUNTIME_DIR": str(folder / "run")})
    editor.set_up("settings = {debounce_ms = 0, alternatives = 3, prefetch = false}")
    yield editor, engine
    editor.close()
    engine.close()


@pytest.fixture
def engine(running: tuple[Neovim, FakeEngine]) -> FakeEngine:
    engine = running[1]
    engine.answer = lambda request: script("value")
    engine.requests.clear()
    return engine


@pytest.fixture
def editor(running: tuple[Neovim, FakeEngine], engine: FakeEngine) -> Iterator[Neovim]:
    editor = running[0]
    editor.lua("_G.told, _G.logged = {}, {}")
    yield editor
    editor.api.input("<Esc>")
    editor.api.command("stopinsert | %bwipeout!")


@pytest.fixture
def name() -> str:
    """Of a file that no other test has open."""
    return f"file{next(_numbers)}.py"
