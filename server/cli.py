"""The way into ``draftline``: whatever goes wrong, its user sees one line at most. ``commands`` says what it can do."""

from __future__ import annotations

import contextlib
import os
import sys

from server.standard_streams import finish_output, prepare


def main() -> None:
    """The console script. Whatever goes wrong unexpectedly is one line for the user; the rest is in the log."""
    prepare()
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        # It was deleted, and libraries that look for it fail in ways of their own.
        os.chdir("/")
    code: str | int | None = 0
    try:
        # Imported in here, so that not even Ctrl-C while it loads leaves a traceback.
        from server.commands import app

        app()
    except SystemExit as leaving:
        code = leaving.code
    except KeyboardInterrupt:
        code = 130  # as shells have it
    except Exception as error:
        if not finish_output():
            sys.exit(1)  # it has been told, and is why the command failed
        print(f"draftline: unexpected {_described(error)}", file=sys.stderr)
        sys.exit(1)
    if not finish_output():
        code = code or 1
    sys.exit(code)


def _described(error: Exception) -> str:
    """One line, and the traceback into the log."""
    import traceback

    where = ""
    with contextlib.suppress(Exception):
        from server.process.places import find_places

        log = find_places().log
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(traceback.format_exc())
        where = f"; details are in {log}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


if __name__ == "__main__":
    main()
