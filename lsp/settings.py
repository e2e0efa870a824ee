"""What a user can set, from ``initializationOptions`` or ``workspace/didChangeConfiguration`` (key ``draftline``).

The fields below are the one place where a setting is written down: what is read from an editor is checked against them,
and the schema that editors show (``docs/settings.schema.json``) is made from them by ``python -P -m lsp.settings``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal

from prompts.sources import Sources

SCHEMA_ID = "draftline/settings"


def _number(default: int | str, low: int, high: int, description: str, word: str = "") -> Any:
    """A whole number from ``low`` to ``high``, or ``word``."""
    return field(default=default, metadata={"limits": (low, high), "word": word, "description": description})


@dataclass(frozen=True)
class Settings:
    max_tokens: int = _number(96, 1, 4096, "The most tokens that one item may have.")
    timeout_ms: int = _number(
        5000,
        50,
        600_000,
        "Milliseconds after which an unfinished item is shown as far as it came, or given up.",
    )
    debounce_ms: int | Literal["auto"] = _number(
        "auto",
        0,
        10_000,
        "The longest wait, in milliseconds, before a request that typing caused. The wait itself follows how fast you "
        'type and how fast the engine answers. "auto" never waits longer than 150; 0 never waits.',
        word="auto",
    )
    alternatives: int = _number(
        3, 1, 8, "How many different items are made when you ask by hand; while you type it is always one."
    )
    prefetch: bool = field(
        default=True,
        metadata={
            "description": "While nothing else is asked for, compute what follows once the item on the screen is "
            "accepted."
        },
    )
    next_edit: bool = field(
        default=True,
        metadata={
            "description": "After an edit, say that it applies elsewhere in the document too, in editors that show "
            "edits themselves."
        },
    )
    popup: bool = field(
        default=True,
        metadata={
            "description": "Offer the item in the ordinary completion popup too, for editors that have no ghost text."
        },
    )
    sources: Sources = field(
        default_factory=Sources,
        metadata={
            "description": "What a prompt may hold besides the text of the current document. With all of them off it "
            "holds that text and nothing else."
        },
    )


_KEPT = "; it was left as it is"


def read_settings(value: object, before: Settings | None = None) -> tuple[Settings, list[str]]:
    """The settings in ``value`` over ``before``, and one line for each fault in it.

    What can't be used keeps its value, unknown names are left out; ``{"draftline": {...}}`` is looked into.
    """
    settings = before or Settings()
    if value is None:
        return settings, []
    if not isinstance(value, Mapping):
        return settings, [f"settings must be an object, not {type(value).__name__}{_KEPT}"]
    given: Mapping[Any, Any] = value
    if isinstance(given.get("draftline"), Mapping):
        given = given["draftline"]
    problems: list[str] = []
    settings = _read(settings, given, "", problems)
    if unknown := _unknown(given, settings, ""):
        problems.append(f"no settings of these names are known, they were left out: {', '.join(unknown)}")
    return settings, problems


def _read(settings: Any, given: Mapping[Any, Any], prefix: str, problems: list[str]) -> Any:
    changes: dict[str, Any] = {}
    for one in fields(settings):
        if one.name not in given:
            continue
        found, now = given[one.name], getattr(settings, one.name)
        if isinstance(now, Sources):
            if isinstance(found, Mapping):
                changes[one.name] = _read(now, found, f"{prefix}{one.name}.", problems)
                continue
            if found is None:
                continue
        elif _fits(one, found):
            changes[one.name] = found
            continue
        problems.append(f"setting {prefix}{one.name} must be {_wanted(one)}{_KEPT}")
    return replace(settings, **changes)


def _fits(one: Field[Any], value: object) -> bool:
    if (limits := one.metadata.get("limits")) is None:
        return isinstance(value, bool)
    if isinstance(value, int) and not isinstance(value, bool):
        return bool(limits[0] <= value <= limits[1])
    return isinstance(value, str) and bool(value) and value == one.metadata["word"]


def _wanted(one: Field[Any]) -> str:
    if (limits := one.metadata.get("limits")) is None:
        return "an object" if one.default_factory is Sources else "true or false"
    word = f', or "{one.metadata["word"]}"' if one.metadata["word"] else ""
    return f"a whole number from {limits[0]} to {limits[1]}{word}"


def _unknown(given: Mapping[Any, Any], settings: Any, prefix: str) -> list[str]:
    known = {one.name: getattr(settings, one.name) for one in fields(settings)}
    names = [f"{prefix}{name}" for name in given if name not in known]
    for name, now in known.items():
        if isinstance(now, Sources) and isinstance(given.get(name), Mapping):
            names += _unknown(given[name], now, f"{name}.")
    return names


def schema() -> dict[str, Any]:
    """The settings as a JSON schema (draft 2020-12): types, limits, defaults and descriptions."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Draftline",
        "description": "What the language server takes as initializationOptions, and below the key draftline of "
        "workspace/didChangeConfiguration.",
        **_object(Settings()),
    }


def _object(settings: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {one.name: _property(one, getattr(settings, one.name)) for one in fields(settings)},
    }


def _property(one: Field[Any], default: Any) -> dict[str, Any]:
    about = {"description": one.metadata["description"]}
    if isinstance(default, Sources):
        return about | _object(default)
    if (limits := one.metadata.get("limits")) is None:
        return about | {"type": "boolean", "default": default}
    number = {"type": "integer", "minimum": limits[0], "maximum": limits[1]}
    if word := one.metadata["word"]:
        return about | {"anyOf": [{"const": word}, number], "default": default}
    return about | number | {"default": default}


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
