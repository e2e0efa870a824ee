"""The language server as a real process over stdio, with an engine that answers what a test wants."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, script
from language_server import root_of, start_server

from bench.lsp_client import LspClient

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path: a socket's may have 103 bytes."""
    path = Path(tempfile.mkdtemp(prefix="dl-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[tuple[LspClient, FakeEngine]]:
    """One server for a whole module: a document of one test is no other test's."""
    engine = FakeEngine(folder / "run")
    with start_server(folder) as client:
        client.initialize(root=root_of(folder), settings={"debounce_ms": 0, "alternatives": 1, "prefetch": False})
        client.wait_ready()
        yield client, engine
    engine.close()


@pytest.fixture
def editor(running: tuple[LspClient, FakeEngine]) -> LspClient:
    return running[0]


@pytest.fixture
def engine(running: tuple[LspClient, FakeEngine]) -> FakeEngine:
    engine = running[1]
    engine.answer = lambda request: script("value")
    engine.requests.clear()
    engine.cancelled.clear()
    return engine


@pytest.fixture
def uri(folder: Path) -> str:
    """A document in the workspace that no other test has open."""
    return (root_of(folder) / f"file{next(_numbers)}.py").as_uri()


@pytest.fixture
def own_server(folder: Path) -> Iterator[Callable[..., LspClient]]:
    """Starts a server of the test's own; the engine is whoever listens in ``folder``."""
    clients: list[LspClient] = []

    def start(**more: Any) -> LspClient:
        clients.append(start_server(folder, **more))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
