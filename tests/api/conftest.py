"""One scripted engine process for all tests of the HTTP API, reached over both of its addresses."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from engine_process import EngineHome, engine_home


@pytest.fixture(scope="session")
def api_home() -> Iterator[EngineHome]:
    with engine_home() as home:
        home.serve(SCRIPTED_TOKEN_MS="4")
        yield home


@pytest.fixture
def api(api_home: EngineHome) -> Iterator[httpx.Client]:
    """Over the Unix socket."""
    with api_home.http() as http:
        yield http


@pytest.fixture
def web(api_home: EngineHome) -> Iterator[httpx.Client]:
    """Over loopback HTTP."""
    with httpx.Client(base_url=api_home.url, trust_env=False, timeout=30) as http:
        yield http
