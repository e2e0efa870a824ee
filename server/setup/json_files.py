"""Our entries in a JSON file of settings, with nothing else in it moved by a byte."""

from __future__ import annotations

import json
import re
from typing import Any

from server.setup.blocks import CantEdit

_INDENTS = (2, 4, "\t", 3, 8, 1)


def with_entries(text: str, wanted: dict[str, Any]) -> str:
    """``text`` with all of ``wanted`` in it, objects merged. Raises CantEdit where that can't be done safely: comments,
    another value in the place of ours, or a layout that would have to change. Keys below one that names draftline are
    ours, and are replaced."""
    if not text.strip():
        return json.dumps(wanted, indent=2) + "\n"
    try:
        now = json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        raise CantEdit("has comments or isn't plain JSON") from None
    except RecursionError:
        raise CantEdit("is nested too deeply") from None
    if not isinstance(now, dict):
        raise CantEdit("doesn't hold an object")
    goal = _merged(now, wanted, "")
    if goal == now:
        return text
    new = _same_layout(text, now, goal) or _at_the_end(text, now, goal)
    if new is None or json.loads(new) != goal:
        raise CantEdit("is laid out in a way that would have to change")
    return new


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise CantEdit("has a key twice in one object")
    return dict(pairs)


def _merged(now: dict[str, Any], wanted: dict[str, Any], path: str) -> dict[str, Any]:
    result = dict(now)
    for key, value in wanted.items():
        place = f"{path}{key}"
        if key not in now:
            result[key] = value
        elif isinstance(value, dict) and isinstance(now[key], dict):
            result[key] = _merged(now[key], value, f"{place}.")
        elif now[key] != value:
            if "draftline" not in place:
                raise CantEdit(f"has another value for {place}")
            result[key] = value
    return result


def _same_layout(text: str, now: dict[str, Any], goal: dict[str, Any]) -> str | None:
    """The file written anew, when it was written just so before."""
    body = text.strip()
    newline = "\r\n" if "\r\n" in text else "\n"
    for indent in _INDENTS:
        for ascii_only in (False, True):

            def dumps(value: Any, indent: Any = indent, ascii_only: bool = ascii_only) -> str:
                return json.dumps(value, indent=indent, ensure_ascii=ascii_only).replace("\n", newline)

            if dumps(now) == body:
                return text.replace(body, dumps(goal))
    return None


def _at_the_end(text: str, now: dict[str, Any], goal: dict[str, Any]) -> str | None:
    """New keys behind those that are there, which stay as they are; None when one of those changes."""
    if any(goal[key] != now[key] for key in now):
        return None
    newline = "\r\n" if "\r\n" in text else "\n"
    found = re.search(r'\n([ \t]+)"', text)
    indent = found[1] if found else "  "
    lines = json.dumps({key: goal[key] for key in goal if key not in now}, indent=indent).split("\n")[1:-1]
    end = text.rindex("}")
    body = text[:end].rstrip()
    return body + ("," if now else "") + newline + newline.join(lines) + newline + text[end:]
