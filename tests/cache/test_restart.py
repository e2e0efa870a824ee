"""``draftline serve --cache-dir``: a real engine goes on from what the one before it had computed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import REAL_COMMAND, EngineHome, engine_home, wait_until
from tiny_model import write_tiny_model

from server.cache.disk import SUFFIX

PROMPT = "def add(first, second):\n    return first + second\n" * 12


@pytest.fixture
def home() -> Iterator[EngineHome]:
    with engine_home(REAL_COMMAND) as home:
        yield home


def session(home: EngineHome, model: Path, folder: Path) -> dict[str, int]:
    """One engine's life with one request -> its counters."""
    home.serve("--model", str(model), "--cache-dir", str(folder))
    body = {"route": "plain", "segments": [{"role": "text", "text": PROMPT, "source": "test"}], "max_tokens": 4}
    with home.http() as http:
        answer = http.post("/draftline/v1/complete", json=body)
    assert answer.status_code == 200, answer.text
    counters: dict[str, int] = json.loads(answer.text.strip().splitlines()[-1])["finished"]["counters"]
    home.run("stop")
    wait_until(lambda: home.health() is None)
    return counters


def test_an_engine_goes_on_from_what_the_one_before_it_kept(home: EngineHome, tmp_path: Path) -> None:
    model, folder = write_tiny_model(tmp_path / "tiny.gguf", seed=3), tmp_path / "cache"
    first, second = session(home, model, folder), session(home, model, folder)
    assert first["reused"] == 0
    assert (second["reused"], second["prefilled"]) == (first["prompt_tokens"], 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "kept prefixes found" in home.log()
    write_tiny_model(model, seed=4)
    assert session(home, model, folder)["reused"] == 0, "another model, of the same name"
    assert len(list(folder.glob(f"*{SUFFIX}"))) == 2


def test_a_folder_that_is_a_file_keeps_no_engine_from_serving(home: EngineHome, tmp_path: Path) -> None:
    model, place = write_tiny_model(tmp_path / "tiny.gguf", seed=3), tmp_path / "cache"
    place.write_text("mine")
    assert session(home, model, place)["prefilled"] > 100
    assert place.read_text() == "mine"
    lines = [line for line in home.log().splitlines() if "WARNING" in line or "ERROR" in line]
    assert len(lines) == 2, "one for what can't be read, one for what can't be written"
    assert all(str(place) in line for line in lines)
    assert "Traceback" not in home.log()
