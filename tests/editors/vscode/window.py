"""A VS Code window for tests: code-server with the extension, and Chromium in front of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
EXTENSION = ROOT / "editors" / "vscode"
SCREENSHOTS = ROOT / "build" / "screenshots"
VERSION = re.compile(r"^(\w+) := ([\d.]+)$", re.MULTILINE)

QUIET = {
    "chat.disableAIFeatures": True,
    "editor.cursorBlinking": "solid",
    "editor.inlineSuggest.enabled": True,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.suggestOnTriggerCharacters": False,
    "editor.minimap.enabled": False,
    "extensions.autoCheckUpdates": False,
    "extensions.autoUpdate": False,
    "files.autoSave": "off",
    "git.enabled": False,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "window.confirmBeforeClose": "never",
    "workbench.startupEditor": "none",
}


def installed() -> dict[str, Path]:
    """Where ``make editors-vscode`` put things. Raises RuntimeError with that command when one is missing."""
    versions = dict(VERSION.findall((ROOT / "editors" / "vscode.mk").read_text(encoding="utf-8")))
    editors = ROOT / ".editors"
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
    found = {
        "node": editors / f"node-{versions['NODE_WHEEL']}" / "bin" / "node",
        "code": editors / f"code-server-{versions['CODE_SERVER']}" / "node_modules/code-server/out/node/entry.js",
        "playwright": editors / f"playwright-core-{versions['PLAYWRIGHT']}" / "node_modules/playwright-core",
        "extension": EXTENSION / "dist" / "extension.js",
        "chromium": Path(chromium or "/chromium"),
    }
    if missing := [name for name, path in found.items() if not path.exists()]:
        raise RuntimeError(f"missing for the tests in VS Code: {', '.join(missing)}. Install it: make editors-vscode")
    return found


class Window:
    """One window on one folder. settings: the user's."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.work = folder / "shop"
        self.work.mkdir()
        for group in ("User", "Machine"):  # a remote window, as this is, has settings of machine scope from the latter
            settings_file = folder / "user" / group / "settings.json"
            settings_file.parent.mkdir(parents=True)
            settings_file.write_text(json.dumps(QUIET | settings), encoding="utf-8")
        self._install()
        parts = installed()
        port = _free_port()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("DRAFTLINE_", "VSCODE_"))
        }
        self._code_log = (folder / "code.log").open("wb")
        options = {"user-data-dir": folder / "user", "extensions-dir": folder / "extensions", "config": "/dev/null"}
        self._code = subprocess.Popen(
            [
                *(parts["node"], parts["code"], "--auth", "none", "--bind-addr", f"127.0.0.1:{port}"),
                *("--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"),
                *(f"--{name}={value}" for name, value in options.items()),
                self.work,
            ],
            env=environment | {"HOME": str(folder)},
            stdout=self._code_log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._browser = subprocess.Popen(
            [parts["node"], HERE / "driver.mjs", parts["playwright"], parts["chromium"], folder / "profile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._code_log,
            text=True,
            start_new_session=True,
        )
        try:
            self._open(f"http://127.0.0.1:{port}")
        except BaseException:
            self.close()
            raise

    def _open(self, address: str) -> None:
        self.wait(lambda: _answers(f"{address}/healthz"), "code-server to answer")
        self.js(f"await page.goto({json.dumps(f'{address}/?folder={self.work}')})")
        self.js("await page.waitForSelector('.monaco-workbench .statusbar-item')")

    def _install(self) -> None:
        """Put the extension, as the .vsix has it, and the canary where VS Code looks for extensions."""
        manifest = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
        target = self.folder / "extensions" / f"{manifest['publisher']}.{manifest['name']}-{manifest['version']}"
        target.mkdir(parents=True)
        for name in ("package.json", "README.md", "LICENSE"):
            shutil.copy(EXTENSION / name, target)
        shutil.copytree(EXTENSION / "dist", target / "dist")
        shutil.copytree(EXTENSION / "media", target / "media")
        shutil.copytree(HERE / "canary", self.folder / "extensions" / "draftline.canary-0.0.1")

    def js(self, body: str) -> Any:
        """What the body of an async function with ``page`` returns."""
        assert self._browser.stdin is not None
        assert self._browser.stdout is not None
        self._browser.stdin.write(json.dumps(body) + "\n")
        self._browser.stdin.flush()
        line = self._browser.stdout.readline()
        answer = json.loads(line) if line else {"error": f"the browser is gone; see {self._code_log.name}"}
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """The first true value of ``condition``."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s for {what}")
            time.sleep(0.15)
        return value

    def status(self) -> str:
        """The text of Draftline's status bar item; empty while there is none."""
        return self._statusbar("Draftline:")

    def _statusbar(self, begin: str) -> str:
        items = self.js("return await page.$$eval('.statusbar-item', all => all.map(one => one.textContent))")
        # In front of the words stands the icon, a character of a font of its own.
        return next((text[text.index(begin) :].strip() for text in items if begin in text), "")

    def canary(self) -> str:
        return self._statusbar("canary:")

    def wait_status(self, *words: str, seconds: float = 60) -> str:
        def found() -> str:
            text = self.status()
            return text if any(word in text for word in words) else ""

        return str(self.wait(found, f"the status {' or '.join(words)}", seconds))

    def new_file(self, name: str, text: str = "") -> Path:
        """Write a file, open it and put the cursor at its end."""
        path = self.work / name
        path.write_text(text, encoding="utf-8")
        shown = f"return await page.$('.tab.active[data-resource-name=\"{name}\"]') !== null"
        # The list shows what was opened last before what is asked for, and a slow machine takes Enter for that.
        row = f"return await page.$('.quick-input-list .monaco-list-row[aria-label*=\"{name}\"]') !== null"
        for tries in range(3):
            self.press("Control+P")
            self.js("await page.waitForSelector('.quick-input-widget input')")
            self.type(str(path))
            self.wait(lambda: self.js(row), f"{name} in the list of files")
            self.press("Enter")
            try:
                self.wait(lambda: self.js(shown), f"the tab of {name}", 60 if tries == 2 else 10)
                break
            except AssertionError:
                if tries == 2:
                    raise
                self.press("Escape")
        self.js("await page.click('.editor-group-container.active .monaco-editor .view-lines')")
        self.press("Control+End")
        return path

    def click_file(self, name: str) -> None:
        """Open a file as one click in the list does: its tab is a preview, and the next such one takes its place."""
        self.js(f"await page.click('.explorer-folders-view .monaco-list-row[aria-label*=\"{name}\"]')")

    def new_notebook(self, name: str, *cells: str) -> Path:
        """Write a notebook of Python cells and open it."""
        kept: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = {"cells": [kept | {"source": text.splitlines(keepends=True)} for text in cells]}
        path = self.work / name
        path.write_text(json.dumps(notebook | {"metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
        self.click_file(name)
        self.js("await page.waitForSelector('.notebookOverlay .cell-list-container')")
        editors = "return await page.$$eval('.notebookOverlay .monaco-editor', all => all.length)"
        self.wait(lambda: self.js(editors) >= 1, "the cells")
        return path

    def type(self, text: str, delay: int = 40) -> None:
        self.js(f"await page.keyboard.type({json.dumps(text)}, {{delay: {delay}}})")

    def press(self, key: str) -> None:
        self.js(f"await page.keyboard.press({json.dumps(key)})")

    def run(self, command: str) -> None:
        """A command by its title."""
        self.press("F1")
        self.js("await page.waitForSelector('.quick-input-widget input')")
        self.type(command, delay=5)
        # The label goes on with its keys; others may begin with the same words, and stand before it.
        labels = [f".quick-input-list .monaco-list-row[aria-label{by}]" for by in (f"='{command}'", f"^='{command},'")]
        row = json.dumps(", ".join(labels))
        self.wait(lambda: self.js(f"return await page.$({row}) !== null"), f"the command {command}")
        self.js(f"await page.click({row})")

    def ghost(self) -> str:
        """The grey text on the screen, white space left out: it lies there in pieces, and out of order."""
        pieces = self.js(
            "return await page.$$eval('[class*=ghost-text]', all => all"
            ".filter(one => !one.querySelector('[class*=ghost-text]')).map(one => one.textContent))"
        )
        return "".join("".join(pieces).split()).replace("\u00b7", "")

    def wait_ghost(self, text: str = "") -> str:
        """Wait until there is grey text that holds ``text``."""
        return str(self.wait(lambda: (found := self.ghost()) and text in found and found, f"ghost text {text!r}"))

    def saved(self, path: Path) -> str:
        """The document's text, through the file."""
        self.press("Control+S")
        self.wait(lambda: self.js("return await page.$('.tab.active.dirty') === null"), "the file to be saved")
        return path.read_text(encoding="utf-8")

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.js(f"await page.screenshot({{path: {json.dumps(str(SCREENSHOTS / f'vscode-{name}.png'))}}})")

    def close(self) -> None:
        """End both with all that they started."""
        assert self._browser.stdin is not None
        self._browser.stdin.close()  # the browser leaves when nobody asks any more
        self._code.terminate()
        for process in (self._browser, self._code):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._code_log.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
