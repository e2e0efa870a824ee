"""The core that ``draftline complete`` uses: a text and a place in it, an engine, an outcome."""

import asyncio

import pytest
from fake_engine import Script

from lsp.completion import complete_at
from lsp.settings import Settings, read_settings
from prompts.text import Cursor
from server.client import EngineClient, EngineUnavailable


@pytest.fixture
def complete(engine, folder, monkeypatch):
    monkeypatch.setenv("DRAFTLINE_RUNTIME_DIR", str(folder / "run"))

    def run(text, line, column, **more):
        async def main():
            async with await EngineClient.connect(start=False) as client:
                return await complete_at(client, text, "a.py", Cursor(line, column), **more)

        return asyncio.run(main())

    return run


def test_a_place_in_a_text_is_completed(complete, engine):
    engine.answer = lambda request: Script(pieces=["a", " + ", "b\n"])
    outcome = complete("def add(a, b):\r\n    return \r\n", 1, 11)
    assert (outcome.reason, outcome.text) == ("shown", "a + b")
    assert "".join(engine.texts("prefix")) == "def add(a, b):\n    return "
    assert outcome.figures()["reused"] == 60


def test_the_engine_that_dies_meanwhile_is_told(complete, engine):
    engine.answer = lambda request: Script(pieces=["a"], error=(500, "internal", "out of memory"))
    with pytest.raises(Exception, match="out of memory"):
        complete("x = ", 0, 4)


def test_limits_reach_the_engine(complete, engine):
    complete("x = ", 0, 4, settings=Settings(max_tokens=7, timeout_ms=900))
    assert (engine.requests[-1]["max_tokens"], engine.requests[-1]["timeout_ms"]) == (7, 900)


def test_the_prompt_fits_into_the_context_that_the_engine_tells(complete, engine):
    text = "".join(f"value_{n} = {n}\n" for n in range(900))
    sizes = []
    for context_length in (4096, 512):
        engine.health["context_length"] = context_length
        complete(text, 450, 0)
        sizes.append(sum(len(part["text"]) for part in engine.requests[-1]["segments"]))
    engine.health["context_length"] = 4096
    assert sizes[1] < 0.4 * sizes[0]


def test_without_an_engine_there_is_one_line_that_says_so(folder, monkeypatch):
    monkeypatch.setenv("DRAFTLINE_RUNTIME_DIR", str(folder / "nobody"))
    with pytest.raises(EngineUnavailable, match="no engine is running"):
        asyncio.run(EngineClient.connect(start=False))


@pytest.mark.parametrize("value", [None, {}, {"draftline": {}}, {"draftline": {"sources": {}}, "python": {}}])
def test_settings_that_say_nothing_change_nothing(value):
    assert read_settings(value) == (Settings(), [])


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"max_token": 5}, "max_token"),
        ({"draftline": {"new": [1], "sources": {"paths": False}}}, "new, sources.paths"),
    ],
)
def test_names_of_no_setting_are_told_and_change_nothing(value, names):
    assert read_settings(value) == (
        Settings(),
        [f"no settings of these names are known, they were left out: {names}"],
    )


@pytest.mark.parametrize("value", [3, "text", [1]])
def test_settings_that_are_no_object_are_told(value):
    settings, problems = read_settings(value)
    assert settings == Settings()
    assert len(problems) == 1


def test_settings_are_changed_one_by_one():
    first, _ = read_settings({"max_tokens": 5, "sources": {"path": False}})
    second, problems = read_settings({"draftline": {"debounce_ms": 0, "sources": {"open_files": False}}}, first)
    assert problems == []
    assert (second.max_tokens, second.debounce_ms) == (5, 0)
    assert (second.sources.path, second.sources.open_files, second.sources.repository) == (False, False, True)
