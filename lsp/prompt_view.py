"""``draftline/prompt``: the exact prompt for an item at a position, and where each part of it is from.

For people who want to see what a model gets to read. No engine is asked, and nothing is logged.
"""

from __future__ import annotations

from typing import Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp.completer import Completer
from lsp.completion import completion_request, is_blank
from prompts.budget import NoPromptBudget
from prompts.text import SourceFile

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
    document = completer.documents.get(uri)
    if document is None or not document.in_sync:
        return {"reason": "excluded", "detail": "the document is not open, or its changes came out of order"}
    if completer.workspace.excluded(uri):
        return {"reason": "excluded", "detail": "an ignored file or one that looks like a secret"}
    snapshot = document.snapshot()
    if is_blank(snapshot.source):
        return {"reason": "blank", "detail": "nothing is written in the document yet"}
    completer.documents.focus(uri)  # as a request for an item does: the order of the files depends on it
    try:
        request = completion_request(
            SourceFile(completer.workspace.shown_path(uri), snapshot.source),
            snapshot.cursor(line, units, completer.encoding),
            completer.workspace.surroundings_of(document, completer.documents),
            completer.settings,
            completer.budget,
            document.prefix_window,
        )
    except NoPromptBudget as error:
        return {"reason": "error", "detail": str(error)}
    return {
        "version": snapshot.version,
        "max_tokens": request.max_tokens,
        "segments": [
            {"role": part.role, "source": part.source, "path": part.path, "text": part.text}
            for part in request.segments
        ],
    }
