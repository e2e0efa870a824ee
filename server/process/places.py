"""Where the engine process and its clients meet: runtime directory, socket, lock, published address, log."""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_runtime_dir, user_state_dir

RUNTIME_DIR_VARIABLE = "DRAFTLINE_RUNTIME_DIR"
OURS = "engine."
"""How the names of all our files in there begin."""
MAX_SOCKET_PATH = 103
"""Bytes of a Unix socket's path that every system accepts (Linux takes 107, macOS and the BSDs 103)."""


class RuntimeDirectoryError(Exception):
    """The runtime directory can't be used. str() is one line that says why and what to do."""


@dataclass(frozen=True)
class Places:
    """The files of one user's engine. runtime: socket, lock, published address, last model; state: the log."""

    runtime: Path
    state: Path

    @property
    def socket(self) -> Path:
        return self.runtime / "engine.sock"

    @property
    def lock(self) -> Path:
        """Locked by the engine as long as it lives; holds its process id."""
        return self.runtime / "engine.lock"

    @property
    def published(self) -> Path:
        """JSON for people and scripts: pid, version, model and the HTTP address of the running engine."""
        return self.runtime / "engine.json"

    @property
    def last(self) -> Path:
        """JSON for clients that name no model: see ``last_model``."""
        return self.runtime / "engine.last"

    @property
    def wanted(self) -> Path:
        """JSON of the client that replaces the engine at the moment: see ``last_model``."""
        return self.runtime / "engine.wanted"

    @property
    def log(self) -> Path:
        return self.state / "engine.log"


def find_places() -> Places:
    """This user's places, created with mode 0700 where missing. Raises RuntimeDirectoryError.

    ``DRAFTLINE_RUNTIME_DIR`` puts everything, the log too, into one directory of the caller's choice.
    """
    given = os.environ.get(RUNTIME_DIR_VARIABLE)
    if given and not Path(given).is_absolute():
        # An editor's, a shell's and an engine's working directory differ: each would have a place of its own.
        raise RuntimeDirectoryError(
            f"{RUNTIME_DIR_VARIABLE} is {given!r}, which is no absolute path; set it to one that begins with /"
        )
    try:
        if given:
            runtime = state = Path(given)
        else:
            with warnings.catch_warnings():
                # An unset XDG_RUNTIME_DIR (containers, root) has a safe fall-back: nothing to tell the user about.
                warnings.simplefilter("ignore")
                runtime = Path(user_runtime_dir("draftline", ensure_exists=True))
            state = Path(user_state_dir("draftline"))
        for directory in (runtime, state):
            _make_private(directory)
    except OSError as error:
        raise RuntimeDirectoryError(
            f"the runtime directory can't be used: {error}; set {RUNTIME_DIR_VARIABLE} to a directory of your own"
        ) from error
    places = Places(runtime, state)
    length = len(os.fsencode(places.socket))
    if length > MAX_SOCKET_PATH:
        raise RuntimeDirectoryError(
            f"the socket path {places.socket} is {length} bytes long and at most {MAX_SOCKET_PATH} are possible; "
            f"set {RUNTIME_DIR_VARIABLE} to a shorter directory"
        )
    return places


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """What fails inside is the writing of this file of ours. Raises RuntimeDirectoryError."""
    try:
        yield
    except OSError as error:
        raise RuntimeDirectoryError(
            f"{file} can't be written: {error.strerror or error}; make room there, or set {RUNTIME_DIR_VARIABLE} to "
            f"another directory of your own"
        ) from error


def _make_private(directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{directory} is not a directory")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user")
    if found.st_mode & stat.S_ISVTX:
        # /tmp and its like: root, who owns them, would lock everybody else out.
        raise PermissionError(f"{directory} is there for all users")
    if stat.S_IMODE(found.st_mode) & 0o077:
        others = sorted(path.name for path in directory.iterdir() if not path.name.startswith(OURS))
        if others:
            # Somebody's home, /etc: closing it would lock others out of what isn't ours.
            raise PermissionError(
                f"{directory} is open to other users and holds more than Draftline's files ({others[0]})"
            )
        directory.chmod(0o700)
