"""``draftline`` with ScriptedEngine in place of the real one: a real engine process that starts in a moment.

Environment: SCRIPTED_VERSION, SCRIPTED_LOAD_S, SCRIPTED_FAIL (what loading fails with), SCRIPTED_TOKEN_MS,
SCRIPTED_CLOSE_S (how long the end takes).
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import scripted_engine

import server

server.__version__ = os.environ.get("SCRIPTED_VERSION", server.__version__)
sys.modules["server.engine"] = scripted_engine

from server import cli  # noqa: E402
from server.gguf.header import map_file  # noqa: E402
from server.process import serve  # noqa: E402


class SlowToEnd(scripted_engine.ScriptedEngine):
    def close(self) -> None:
        time.sleep(float(os.environ.get("SCRIPTED_CLOSE_S", "0")))
        super().close()


def load(model: Path, on_failure: Callable[[], None], cache_dir: Path | None = None) -> SlowToEnd:
    time.sleep(float(os.environ.get("SCRIPTED_LOAD_S", "0")))
    if failure := os.environ.get("SCRIPTED_FAIL"):
        raise serve.ServeError(failure)
    data = model.read_bytes()
    if b"damaged" in data or b"unloadable" in data:
        raise serve.ServeError(f"{model}: it can't be loaded")
    engine = SlowToEnd(float(os.environ.get("SCRIPTED_TOKEN_MS", "0")) / 1000)
    engine.on_failure = on_failure
    return engine


def check(path: Path) -> None:
    """A model that is one header; what stands behind it says what is wrong with it."""
    _, data = map_file(path)
    if b"damaged" in data[:]:
        raise usable.Unusable(f"{path}: it is damaged")


usable = types.ModuleType("server.usable")
usable.Unusable = type("Unusable", (Exception,), {})  # type: ignore[attr-defined]
usable.check_file = check  # type: ignore[attr-defined]
if sys.argv[1:2] == ["check"]:  # doctor looks at real files
    sys.modules["server.usable"] = usable
serve.load_engine = load  # type: ignore[assignment]  # a stand-in of the same shape

if __name__ == "__main__":
    cli.main()
