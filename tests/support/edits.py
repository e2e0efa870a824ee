"""Edits as an editor asks for them."""

from __future__ import annotations

from typing import Any

from bench.lsp_client import LspClient

TEXT = "import os\n\n\ndef area(w, h):\n    return w * h\n\n\nprint(area(1, 2))\n"


def fenced(*lines: str) -> str:
    return "\n".join(("```python", *lines, "```", ""))


def params(
    uri: str, start: tuple[int, int], end: tuple[int, int], instruction: str = "", **more: Any
) -> dict[str, Any]:
    (a, b), (c, d) = start, end
    where = {"start": {"line": a, "character": b}, "end": {"line": c, "character": d}}
    document = {"uri": uri, "version": more.pop("version", None)}
    return {"textDocument": document, "range": where, "instruction": instruction, **more}


def edit(editor: LspClient, uri: str, *args: Any, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = editor.request("draftline/edit", params(uri, *args, **more))
    return result


def actions(
    editor: LspClient, uri: str, start: tuple[int, int], end: tuple[int, int], **context: Any
) -> list[dict[str, Any]]:
    where = params(uri, start, end)["range"]
    found: list[dict[str, Any]] = editor.request(
        "textDocument/codeAction",
        {"textDocument": {"uri": uri}, "range": where, "context": {"diagnostics": [], **context}},
    )
    return found
