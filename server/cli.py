"""The way into ``draftline``: whatever goes wrong, its user sees one line at most. ``commands`` says what it can do."""

from __future__ import annotations

import contextlib
import io
import os
import sys


def main() -> None:
    """The console script. Whatever goes wrong unexpectedly is one line for the user; the rest is in the log."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe may have an encoding that doesn't hold all of a text.
            stream.reconfigure(errors="backslashreplace")
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        # It was deleted, and libraries that look for it fail in ways of their own.
        os.chdir("/")
    try:
        # Imported in here, so that not even Ctrl-C while it loads leaves a traceback.
        from server.commands import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)  # as shells have it
    except Exception as error:
        import traceback

        where = ""
        with contextlib.suppress(Exception):
            from server.process.places import find_places

            log = find_places().log
            with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(traceback.format_exc())
            where = f"; details are in {log}"
        print(f"draftline: unexpected {type(error).__name__}: {' '.join(str(error).split())}{where}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
