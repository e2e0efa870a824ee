"""Starts an engine process that outlives its starter, and tells why when it fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading

from server.process.places import Places

ERROR_PREFIX = "draftline: "


def engine_command() -> list[str]:
    """How to run ``draftline`` from this installation, whatever the working directory holds.

    -P keeps the working directory and -E keeps PYTHONPATH out of the module search: either may hold a folder of the
    user's own named ``server``.
    """
    return [sys.executable, "-P", "-E", "-m", "server.cli"]


class StartedEngine:
    """An engine process that was started here; its first words are kept in an unnamed file."""

    def __init__(self, places: Places, model: str | None) -> None:
        """model: a known name or an absolute path: the engine's working directory is its runtime directory."""
        command = [*engine_command(), "serve", *(["--model", model] if model else [])]
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (closed with this object)
        self._process = subprocess.Popen(
            command,
            cwd=places.runtime,
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            start_new_session=True,
        )
        # Waited for by a thread, so that no zombie stays for as long as the starter lives.
        threading.Thread(target=self._process.wait, name="engine exit", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def last_words(self) -> str:
        """The line with which the engine gave up."""
        self._words.seek(0)
        lines = self._words.read().decode("utf-8", "replace").strip().splitlines()
        told = [line for line in lines if line.startswith(ERROR_PREFIX)]
        if told:
            return told[-1].removeprefix(ERROR_PREFIX)
        return lines[-1].strip() if lines else f"it ended with exit code {self.exit_code} and without a word"
