"""Every refusal of the HTTP API, as one JSON object in the shape OpenAI clients read."""

from __future__ import annotations

from typing import Any

from server.api.ascii_json import AsciiJson

_TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """A request that is refused. code: stable name for programs; param: the field at fault; more: further fields."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.more = more

    def to_json(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
                **self.more,
            }
        }

    def response(self) -> AsciiJson:
        # A client that was told to wait should do so without guessing how long.
        headers = {"retry-after": "1"} if self.status in (429, 503) else None
        return AsciiJson(self.to_json(), status_code=self.status, headers=headers)


def bad_request(message: str, param: str | None = None, code: str = "bad_request", **more: object) -> ApiError:
    return ApiError(400, code, message, param, **more)
