"""Reads typed fields out of a JSON request; a complaint names the field, what was expected and what came."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, overload

from starlette.requests import Request

from server.api.errors import ApiError, bad_request

MAX_BODY_BYTES = 16 * 2**20
"""Far more than any context holds."""
MAX_DIGITS = 300
"""Of a whole number, so that it can be a float too."""

_Choice = TypeVar("_Choice", bound=str)


async def read_json_object(request: Request) -> Fields:
    """The request's body as fields. Raises ApiError (400, or 413 above ``MAX_BODY_BYTES``)."""
    if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the request's body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request(f"the request's body must be a JSON object, not {_name(value)}")
    return Fields(value)


def _too_large() -> ApiError:
    return ApiError(413, "too_large", f"the request is larger than {MAX_BODY_BYTES // 2**20} MiB")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _integer(digits: str) -> int | float:
    """Beyond the range of a float, infinity, as for ``1e400``: out of any field's range either way."""
    return int(digits) if len(digits) <= MAX_DIGITS else math.copysign(math.inf, -1 if digits.startswith("-") else 1)


def _name(value: object) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = json.dumps(value)
        return text if len(text) <= 40 else text[:37] + "..."
    return {dict: "an object", list: "an array", bool: "a boolean", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def whole_characters(text: str) -> str:
    """Text without lone surrogates, which JSON can carry and no tokenizer takes: each becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Fields:
    """The members of one JSON object. A member that is null counts as absent; unknown members are ignored."""

    def __init__(self, members: Mapping[str, Any], where: str = "") -> None:
        self._members = members
        self._where = where

    def present(self, name: str) -> bool:
        return self._members.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._members.get(name)

    def path(self, name: str) -> str:
        return f"{self._where}{name}"

    def wrong(self, name: str, expected: str) -> ApiError:
        return bad_request(f"{self.path(name)}: expected {expected}, got {_name(self.raw(name))}", self.path(name))

    def missing(self, name: str) -> ApiError:
        return bad_request(f"{self.path(name)}: this field is required", self.path(name))

    def text(self, name: str) -> str:
        """A required string."""
        value = self.optional_text(name)
        if value is None:
            raise self.missing(name)
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return whole_characters(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    @overload
    def integer(self, name: str, default: int, low: int, high: int) -> int: ...
    @overload
    def integer(self, name: str, default: None, low: int, high: int) -> int | None: ...
    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.raw(name)
        if value is None:
            return default
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return int(value)

    @overload
    def number(self, name: str, default: float, low: float, high: float) -> float: ...
    @overload
    def number(self, name: str, default: None, low: float, high: float) -> float | None: ...
    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        value = self.raw(name)
        if value is None:
            return default
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if not numeric or not math.isfinite(value) or not low <= value <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, name: str, default: _Choice | None, choices: object) -> _Choice:
        """One of the strings of a Literal type; without a default the field is required."""
        allowed: tuple[_Choice, ...] = get_args(choices)
        value = self.raw(name)
        if value is None:
            if default is None:
                raise self.missing(name)
            return default
        for candidate in allowed:
            if value == candidate:
                return candidate
        raise self.wrong(name, "one of " + ", ".join(f'"{a}"' for a in allowed))

    def object(self, name: str) -> Fields:
        """A nested object; absent counts as empty."""
        value = self.raw(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.path(name)}.")

    def objects(self, name: str) -> list[Fields]:
        """A required array of objects."""
        if not self.present(name):
            raise self.missing(name)
        value = self.raw(name)
        if not isinstance(value, list):
            raise self.wrong(name, "an array of objects")
        for position, item in enumerate(value):
            if not isinstance(item, dict):
                where = f"{self.path(name)}[{position}]"
                raise bad_request(f"{where}: expected an object, got {_name(item)}", where)
        return [Fields(item, f"{self.path(name)}[{i}].") for i, item in enumerate(value)]

    def strings(self, name: str, most: int) -> list[str]:
        """A string or an array of at most ``most`` strings; absent counts as empty."""
        value = self.raw(name)
        if value is None:
            return []
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or len(items) > most or not all(isinstance(i, str) for i in items):
            raise self.wrong(name, f"a string or an array of at most {most} strings")
        return [whole_characters(item) for item in items]
