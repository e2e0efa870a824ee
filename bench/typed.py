"""Typing in a real editor session: the time from a keystroke to its item, through language server and engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.engine import EngineHome
from bench.figures import Figure, Section, Target
from bench.lsp_client import LspClient
from bench.material import TYPINGS, Typing, with_empty_line

ITEM_TOKENS = 20
"""Every item may have so many tokens, and most places make as many."""
MAX_ITEM_MS = Target("≤", 400)
FILE = "shop.py"


@dataclass(frozen=True)
class Keystroke:
    """One typed character. ms: from just before the change is sent until the items are here. memory: the item was a
    shown one's rest, without the engine. The other numbers are the engine's, in tokens or milliseconds."""

    ms: float
    reason: str
    memory: bool
    prefilled: int = 0
    reused: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    engine_ms: float = 0.0
    ttft_ms: float = 0.0


def measure_typing(text: str, *, least: int, typings: Sequence[Typing] = TYPINGS) -> Section:
    """Type until at least ``least`` keystrokes needed the engine, or everything is typed."""
    keystrokes: list[Keystroke] = []
    first: list[Keystroke] = []
    with EngineHome() as home:
        root = home.places.runtime / "shop"
        root.mkdir()
        with LspClient(cwd=root, env=home.environment, timeout=120) as client:
            client.initialize(root=root, settings={"max_tokens": ITEM_TOKENS})
            for number, typing in enumerate(typings):
                if sum(not key.memory for key in keystrokes) >= least:
                    break
                uri = (root / f"{number}_{FILE}").as_uri()
                opened, line = with_empty_line(text, typing.before)
                client.open(uri, opened)
                client.wait_ready()
                first.append(_ask(client, uri, 1, line, 0, time.perf_counter()))
                keystrokes += type_line(client, uri, line, typing.text)
                client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    return typing_section(keystrokes, first)


def type_line(client: LspClient, uri: str, line: int, text: str) -> list[Keystroke]:
    """Type ``text`` into an empty line, waiting for the item after each character."""
    keystrokes = []
    for column, character in enumerate(text):
        began = time.perf_counter()
        client.insert(uri, column + 2, line, column, character)
        keystrokes.append(_ask(client, uri, column + 2, line, column + 1, began))
    return keystrokes


def _ask(client: LspClient, uri: str, version: int, line: int, column: int, began: float) -> Keystroke:
    seen = len(client.messages)
    client.inline(uri, line, column, automatic=True)
    ms = 1000 * (time.perf_counter() - began)
    status = client.wait_for(
        "draftline/status",
        lambda s: bool(s["last"]) and s["last"]["uri"] == uri and s["last"]["version"] == version,
        after=seen,
    )
    return read_status(ms, status["last"])


def read_status(ms: float, last: dict[str, Any]) -> Keystroke:
    """A keystroke from what the server said about its request."""
    return Keystroke(
        ms=ms,
        reason=last["reason"],
        memory=last["cached"],
        prefilled=last["prefilled"],
        reused=last["reused"],
        generated=last["generated"],
        drafted=last["drafted"],
        accepted=last["accepted"],
        engine_ms=last["total_ms"],
        ttft_ms=last["ttft_ms"],
    )


def typing_section(keystrokes: Sequence[Keystroke], first: Sequence[Keystroke] = ()) -> Section:
    """Figures of those that asked the engine; whole items (ITEM_TOKENS, less than two missing) carry the target."""
    asked = [key for key in keystrokes if not key.memory and key.reason != "cancelled"]
    whole = [key for key in asked if key.generated >= ITEM_TOKENS - 1]
    remembered = [key for key in keystrokes if key.memory]

    def figure(name: str, unit: str, keys: Sequence[Keystroke], field: str, target: Target | None = None) -> Figure:
        return Figure(name, unit, tuple(float(getattr(key, field)) for key in keys), target)

    section = Section("Warm keystroke to item, language server and engine process")
    section.figures = [
        figure(f"items of {ITEM_TOKENS} tokens", "ms", whole, "ms", MAX_ITEM_MS),
        figure("every item from the engine", "ms", asked, "ms"),
        figure("of that until the first token", "ms", asked, "ttft_ms"),
        figure("of that in the engine", "ms", asked, "engine_ms"),
        figure("items from memory (typed along)", "ms", remembered, "ms"),
        figure("tokens of an item", "tokens", asked, "generated"),
        figure("prefilled for a keystroke", "tokens", asked, "prefilled"),
        figure("reused for a keystroke", "tokens", asked, "reused"),
        figure("first request of a file, not warm", "ms", first, "ms"),
    ]
    shown = sum(key.reason == "shown" for key in asked)
    section.facts = [
        ("keystrokes", f"{len(keystrokes)}, {len(asked)} asked the engine, {len(remembered)} went along a shown item"),
        ("reasons", f"{shown} of {len(asked)} shown; " + _reasons(asked)),
    ]
    section.details = [asdict(key) for key in keystrokes]
    return section


def _reasons(keys: Sequence[Keystroke]) -> str:
    names = sorted({key.reason for key in keys})
    return ", ".join(f"{name} {sum(key.reason == name for key in keys)}" for name in names)
