"""JSON answers in ASCII, so that every string can travel: a file's name that is no UTF-8 holds lone surrogates."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class AsciiJson(JSONResponse):
    """In place of ``JSONResponse``, which fails on such a string."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
