"""``draftline/prompt``: the exact prompt for an item at a position, and where each part of it is from.

For people who want to see what a model gets to read. No engine is asked, and nothing is logged.
"""

from __future__ import annotations

from typing import Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp.completer import Completer
from lsp.completion import Outcome

PROMPT = "draftline/prompt"


def add_prompt_view(server: LanguageServer, completer: Completer) -> None:
    """Register the request."""

    @server.feature(PROMPT)
    def prompt(params: Any) -> dict[str, Any]:
        uri = getattr(getattr(params, "textDocument", None), "uri", None)
        position = getattr(params, "position", None)
        line, character = getattr(position, "line", None), getattr(position, "character", None)
        if not isinstance(uri, str) or type(line) is not int or type(character) is not int:
            raise JsonRpcInvalidParams(f"{PROMPT} needs a textDocument with a uri, and a position")
        return prompt_at(completer, uri, line, character)


def prompt_at(completer: Completer, uri: str, line: int, units: int) -> dict[str, Any]:
    """``{"version", "max_tokens", "segments"}``, or ``{"reason", "detail"}`` where no engine would be asked."""
    found = completer.request_at(uri, line, units)
    if isinstance(found, Outcome):
        return {"reason": found.reason, "detail": found.detail}
    request, version = found
    return {
        "version": version,
        "max_tokens": request.max_tokens,
        "segments": [
            {"role": part.role, "source": part.source, "path": part.path, "text": part.text}
            for part in request.segments
        ],
    }
