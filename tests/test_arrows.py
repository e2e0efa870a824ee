"""Imports follow the arrows of ``docs/architecture.md``: a room knows those below it and no other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

BELOW = {
    "prompts": (),
    "server/gguf": (),
    "server/model": ("server.gguf",),
    "server/speculation": ("server.request", "server.model", "server.kernel"),
    "server/cache": ("server.model",),
    "server/kernel": ("server.gguf", "server.model", "server.models_known", "server.synth"),
    "server/executor.py": ("server.host_memory", "server.gguf", "server.model", "server.kernel", "server.speculation"),
    "server/engine.py": (
        "server.executor",
        "server.request",
        "server.gguf",
        "server.kernel",
        "server.model",
        "server.speculation",
        "server.cache",
        "server.serving",
        "server.threads",
    ),
    "server/serving": (
        "server.request",
        "server.model",
        "server.speculation",
        "server.cache",
        "server.threads",
    ),
    "server/threads": ("server.model",),
    "server/client.py": ("server.wire", "server.models_known", "server.process"),
    "server/wire.py": ("server.request", "prompts"),
    "server/setup": (),
    "lsp": ("server.client", "server.request", "server.wire", "prompts"),
}
"""A room -> what of ours it may import besides itself; the version, which ``server`` is, everybody may."""

NOT_BELOW = {"server/api": ("server.process", "lsp", "bench", "models"), "server": ("lsp", "bench", "models")}
"""Rooms that may import all but these."""

COMMAND_LINE = ROOT / "server" / "commands.py"
"""Stands above all rooms: it imports each where a command needs it."""


def imports(room: str) -> set[str]:
    """Modules of ours that the files of a room import, wherever in them."""
    place = ROOT / room
    found: set[str] = set()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        if path != COMMAND_LINE:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] in ("bench", "lsp", "models", "prompts", "server")}


def is_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_what_stands_below_it(room: str) -> None:
    itself = room.removesuffix(".py").replace("/", ".")
    allowed = (itself, *BELOW[room], "server.__version__")
    assert [name for name in sorted(imports(room)) if not is_in(name, allowed)] == []


@pytest.mark.parametrize("room", NOT_BELOW)
def test_a_room_imports_nothing_that_stands_above_it(room: str) -> None:
    assert [name for name in sorted(imports(room)) if is_in(name, NOT_BELOW[room])] == []


def test_the_two_halves_of_the_process_meet_only_where_it_is_put_together() -> None:
    for path in (ROOT / "server" / "process").glob("*.py"):
        if path.name != "serve.py":
            assert not [name for name in imports(f"server/process/{path.name}") if is_in(name, ("server.api",))], path
