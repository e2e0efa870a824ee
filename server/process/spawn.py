"""Starts an engine process that outlives its starter, and tells why when it fails."""

from __future__ import annotations

import signal
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
        self.model = model
        self._log = places.log
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
        if lines:
            return last_line(lines)
        # Without its number: who tries again and again has one thing to tell and not many.
        return f"the engine process {ending(self.exit_code)} while it started; its log is {self._log}"


def last_line(lines: list[str]) -> str:
    told = [line for line in lines if line.startswith(ERROR_PREFIX)]
    return told[-1].removeprefix(ERROR_PREFIX) if told else lines[-1].strip()


def ending(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed (systems do that when memory is short)"
    if exit_code is not None and exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"ended without a word (exit code {exit_code})"
