"""Which model a client goes on with that names none and finds no engine: what ran last, kept in a small file.

An engine writes its model as it becomes ready, so a model that can't be loaded never gets in here. The file outlives
an engine that died or was replaced; an end on purpose (``draftline stop``, a signal, nobody there for long) removes it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass

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
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = LastModel(**json.loads(places.last.read_bytes()))
        if all(name is None or isinstance(name, str) for name in (found.ran, found.wanted)):
            return found
    return LastModel()


def write_last(places: Places, last: LastModel) -> None:
    """A disk that is full costs the memory and nothing else."""
    temporary = places.last.with_suffix(".last-new")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(asdict(last)) + "\n", encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(places.last)


def want(places: Places, model: str) -> None:
    write_last(places, LastModel(read_last(places).ran, model))


def want_no_more(places: Places, model: str) -> None:
    """It failed, or was given up; what ran before counts again."""
    last = read_last(places)
    if last.wanted == model:
        write_last(places, LastModel(last.ran))


def forget_last(places: Places) -> str | None:
    """An end on purpose. Returns what was kept."""
    last = read_last(places)
    with contextlib.suppress(OSError):
        places.last.unlink(missing_ok=True)
    return last.next
