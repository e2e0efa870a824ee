"""Which model file a name stands for: ``--model`` takes a path or one of these names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from server.gguf.errors import printable

MODEL_VARIABLE = "DRAFTLINE_MODEL"
EMBEDDED = "embedded"

KNOWN_MODELS: dict[str, Path] = {
    EMBEDDED: Path(__file__).parent.parent / "models" / "draftline-python-56m.gguf",
}


class ModelNotFound(Exception):  # noqa: N818
    """No model file stands under this name or path. str() is one line that says what to do."""


def asked_model(name: str | None) -> str | None:
    """What a user asked for: the option, else the environment variable, else None (no preference).

    An empty variable counts as unset. A path comes back absolute, since the engine's working directory is not the
    user's.
    """
    asked = name or os.environ.get(MODEL_VARIABLE)
    if not asked or asked in KNOWN_MODELS:
        return asked or None
    return os.path.abspath(os.path.expanduser(asked))  # noqa: PTH100, PTH111  (neither ever raises)


def find_model(name: str | None) -> Path:
    """The resolved path of a model file; None stands for the embedded model. Raises ModelNotFound.

    Only cheap checks, so that a wrong name is answered before anything heavy is imported.
    """
    try:
        return _find(name or EMBEDDED)
    except ModelNotFound as error:
        # Who asked comes last: a path that the variable holds too was most likely taken from it.
        source = f" ({MODEL_VARIABLE} asked for it)" if name and name == asked_model(None) else ""
        raise ModelNotFound(printable(f"{error}{source}")) from error


def _find(asked: str) -> Path:
    if asked in KNOWN_MODELS:
        path = KNOWN_MODELS[asked]
        if not path.is_file():
            raise ModelNotFound(
                f"the model {asked!r} is missing from this installation ({path}); "
                f"install Draftline again, or name a file with --model PATH"
            )
        return path.resolve()
    path = Path(asked).absolute()
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # a pipe may have nobody who writes
            kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise ModelNotFound(f"{path} is {kind}; --model takes a GGUF file")
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        known = ", ".join(sorted(KNOWN_MODELS))
        raise ModelNotFound(f"there is no model file {path} and no model of that name; known models: {known}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelNotFound(f"the model file {path} can't be read: {reason}") from error
    if magic != b"GGUF":
        raise ModelNotFound(f"{path} is not a GGUF file; download the model again or name another with --model")
    return path.resolve()


def model_id(path: Path) -> str:
    """The name of a model file in the HTTP API: its known name, else the file's name without ``.gguf``."""
    for name, known in KNOWN_MODELS.items():
        if path == known.resolve():
            return name
    return path.name.removesuffix(".gguf")


def model_stamp(path: Path) -> str:
    """Changes when the file is replaced: its size in bytes and its modification time in nanoseconds."""
    found = path.stat()
    return f"{found.st_size}:{found.st_mtime_ns}"
