"""The small files about what ran last, while several processes write them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from server.process.last_model import LastModel, forget_last, read_last, want, want_no_more, write_last
from server.process.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, tmp_path)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """What another process does just before the next file that is written takes its place."""

    def arrange(act: Callable[[], None]) -> None:
        replace, pid = Path.replace, os.getpid()

        def late(temporary: Path, target: Path) -> Path:
            monkeypatch.setattr(Path, "replace", replace)
            monkeypatch.setattr(os, "getpid", lambda: pid + 1)
            act()
            monkeypatch.setattr(os, "getpid", lambda: pid)
            return replace(temporary, target)

        monkeypatch.setattr(Path, "replace", late)

    return arrange


def test_of_two_that_write_at_once_the_last_one_counts(
    places: Places, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    meanwhile(lambda: want(places, "other"))
    want(places, "mine")
    assert read_last(places).wanted == "mine"
    assert [path.name for path in places.runtime.iterdir()] == ["engine.wanted"]


def test_a_wish_does_not_undo_what_an_engine_writes_at_the_same_time(
    places: Places, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    write_last(places, "old")
    meanwhile(lambda: write_last(places, "new"))
    want(places, "wish")
    assert read_last(places) == LastModel("new", "wish")


def test_a_wish_counts_until_it_is_given_up_or_an_engine_is_ready(places: Places) -> None:
    write_last(places, "ran")
    want(places, "wish")
    want_no_more(places, "another's wish")
    assert read_last(places).next == "wish"
    want_no_more(places, "wish")
    assert read_last(places).next == "ran"
    want(places, "wish")
    write_last(places, "wish")
    assert read_last(places) == LastModel("wish")
    want(places, "next wish")
    assert forget_last(places) == "next wish"
    assert list(places.runtime.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"ran": 7}', '{"other": "x"}'])
def test_what_can_not_be_read_says_nothing(places: Places, content: str) -> None:
    places.last.write_text(content)
    places.wanted.write_text(content)
    assert read_last(places) == LastModel()
