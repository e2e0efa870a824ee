"""Standard input, output and error as the command finds them: any may be closed, and output may not be writable."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Output(io.FileIO):
    """Standard output that remembers its first failure: a stream may drop what it couldn't write, and be fine again."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise


_output: _Output | None = None


def prepare() -> None:
    """Open what is closed, before anything else gets its descriptor, and write what no encoding holds as escapes.

    Where it is closed, input is at its end, errors go nowhere, and output can't be written: a result must not be lost
    without a word.
    """
    global _output
    # In this order, because the system gives out the lowest descriptor that is free.
    if sys.stdin is None:
        sys.stdin = os.fdopen(_null(os.O_RDONLY), "r", closefd=False)
    if sys.stdout is None:
        # Open for reading only: each write fails as one to a closed descriptor does.
        sys.stdout = os.fdopen(_null(os.O_RDONLY), "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_null(os.O_WRONLY), "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe may have an encoding that doesn't hold all of a text.
            stream.reconfigure(errors="backslashreplace")
    if type(sys.stdout) is io.TextIOWrapper:
        _output = _Output(sys.stdout.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_output),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering,
            write_through=sys.stdout.write_through,
        )


def _null(flags: int) -> int:
    descriptor = os.open(os.devnull, flags)
    os.set_inheritable(descriptor, True)
    return descriptor


def finish_output() -> bool:
    """Write what is left of standard output. False when that fails or anything before it did, told in one line.

    Of a reader that left early nothing is said: it has what it wanted.
    """
    failure = None
    try:
        sys.stdout.flush()
    except OSError as error:
        failure = error
        # The interpreter tries once more as it ends, and would have a traceback for it.
        null = _null(os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    if _output is not None:
        failure = _output.failure or failure
    if failure is not None and failure.errno != errno.EPIPE:
        print(f"draftline: standard output can't be written: {failure.strerror}", file=sys.stderr, flush=True)
    return failure is None
