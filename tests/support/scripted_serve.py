"""``draftline`` with ScriptedEngine in place of the real one: a real engine process that starts in a moment.

Environment: SCRIPTED_VERSION, SCRIPTED_LOAD_S, SCRIPTED_FAIL (what loading fails with), SCRIPTED_TOKEN_MS,
SCRIPTED_CLOSE_S (how long the end takes).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import scripted_engine

import server

server.__version__ = os.environ.get("SCRIPTED_VERSION", server.__version__)
sys.modules["server.engine"] = scripted_engine

from server import cli  # noqa: E402
from server.process import serve  # noqa: E402


class SlowToEnd(scripted_engine.ScriptedEngine):
    def close(self) -> None:
        time.sleep(float(os.environ.get("SCRIPTED_CLOSE_S", "0")))
        super().close()


def load(model: Path, on_failure: Callable[[], None]) -> SlowToEnd:
    time.sleep(float(os.environ.get("SCRIPTED_LOAD_S", "0")))
    if failure := os.environ.get("SCRIPTED_FAIL"):
        raise serve.ServeError(failure)
    engine = SlowToEnd(float(os.environ.get("SCRIPTED_TOKEN_MS", "0")) / 1000)
    engine.on_failure = on_failure
    return engine


serve.load_engine = load  # type: ignore[assignment]  # a stand-in of the same shape

if __name__ == "__main__":
    cli.main()
