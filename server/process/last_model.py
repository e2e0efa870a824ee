"""Which model a client goes on with that names none and finds no engine: what ran last, kept in a small file.

An engine writes its model as it becomes ready, so a model that can't be loaded never gets in here. The file outlives
an engine that died or was replaced; an end on purpose (``draftline stop``, a signal, nobody there for long) removes it.
What a client replaces the engine with at the moment is a file of its own: neither ever writes what the other one wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from server.models_known import EMBEDDED
from server.process.places import Places
from server.wire import Health


@dataclass(frozen=True)
class LastModel:
    """Known names or resolved paths. ran: of the engine that was ready last, None when none was. wanted: what a client
    replaces it with at the moment: the one to start as long as nobody has seen it fail."""

    ran: str | None = None
    wanted: str | None = None

    @property
    def next(self) -> str | None:
        """None stands for the embedded model."""
        return self.wanted or self.ran


def lasting_name(model: str, model_id: str) -> str:
    """The embedded model is that of the installation that starts it, so it is kept by its name."""
    return EMBEDDED if model_id == EMBEDDED else model


def name_of(health: Health) -> str:
    return lasting_name(health.model, health.model_id)


def read_last(places: Places) -> LastModel:
    """What can't be read says nothing."""
    return LastModel(_read(places.last, "ran"), _read(places.wanted, "wanted"))


def write_last(places: Places, ran: str) -> None:
    """An engine is ready: what was wanted has come, or something else has."""
    _write(places.last, "ran", ran)
    _remove(places.wanted)


def want(places: Places, model: str) -> None:
    _write(places.wanted, "wanted", model)


def want_no_more(places: Places, model: str) -> None:
    """It failed, or was given up; what ran before counts again."""
    if read_last(places).wanted == model:
        _remove(places.wanted)


def forget_last(places: Places) -> str | None:
    """An end on purpose. Returns what was kept."""
    last = read_last(places)
    _remove(places.last)
    _remove(places.wanted)
    return last.next


def _read(path: Path, key: str) -> str | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        name = json.loads(path.read_bytes())[key]
        return name if isinstance(name, str) else None
    return None


def _write(path: Path, key: str, name: str) -> None:
    """A disk that is full costs the memory and nothing else."""
    # Of this process alone: two that write at once would break each other's file.
    temporary = path.with_name(f"{path.name}-{os.getpid()}")
    try:
        temporary.write_text(json.dumps({key: name}) + "\n", encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(path)
    except OSError:
        _remove(temporary)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
