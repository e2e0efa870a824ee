"""What a user can set, from ``initializationOptions`` or ``workspace/didChangeConfiguration`` (key ``draftline``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prompts.sources import Sources


@dataclass(frozen=True)
class Settings:
    """max_tokens: of one item. timeout_ms: for one item. debounce_ms: wait before a request that typing caused.
    popup: answer ``textDocument/completion`` too."""

    max_tokens: int = 96
    timeout_ms: int = 5000
    debounce_ms: int = 20
    popup: bool = True
    sources: Sources = field(default_factory=Sources)


_LIMITS = {"max_tokens": (1, 4096), "timeout_ms": (50, 600_000), "debounce_ms": (0, 10_000)}
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
    changes: dict[str, Any] = {}
    for name, (low, high) in _LIMITS.items():
        if name in given:
            number = given[name]
            if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
                changes[name] = number
            else:
                problems.append(f"setting {name} must be a whole number from {low} to {high}{_KEPT}")
    changes |= _booleans(given, ("popup",), "", problems)
    sources = given.get("sources")
    if isinstance(sources, Mapping):
        names = tuple(f.name for f in fields(Sources))
        changes["sources"] = replace(settings.sources, **_booleans(sources, names, "sources.", problems))
    elif sources is not None:
        problems.append(f"setting sources must be an object{_KEPT}")
    unknown = _unknown(given, Settings, "") + (
        _unknown(sources, Sources, "sources.") if isinstance(sources, Mapping) else []
    )
    if unknown:
        problems.append(f"no settings of these names are known, they were left out: {', '.join(unknown)}")
    return replace(settings, **changes), problems


def _unknown(value: Mapping[Any, Any], known: type[Settings | Sources], prefix: str) -> list[str]:
    names = {f.name for f in fields(known)}
    return [f"{prefix}{name}" for name in value if name not in names]


def _booleans(value: Mapping[Any, Any], names: tuple[str, ...], prefix: str, problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        if isinstance(value.get(name), bool):
            found[name] = value[name]
        elif name in value:
            problems.append(f"setting {prefix}{name} must be true or false{_KEPT}")
    return found
