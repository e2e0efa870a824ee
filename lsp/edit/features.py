"""Edits in the language server: code actions, commands, and the streaming request of editors that show a diff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp.completion import Outcome
from lsp.edit.actions import REWRITE, code_actions
from lsp.edit.editor import ABOUT, KINDS, Editor, EditOutcome, EditRequest, Kind, Show
from lsp.edit.hunks import Hunk
from lsp.edit.results import hunks_json, outcome_json, text_edits
from lsp.positions import Encoding
from lsp.status import Status

EDIT = "draftline/edit"


def add_edits(server: LanguageServer, editor: Editor, status: Status, encoding: Callable[[], Encoding]) -> None:
    """Register everything. encoding: gives the negotiated position encoding."""

    @server.feature(EDIT)
    async def edit(params: Any) -> dict[str, Any]:
        request = _read(params, EDIT)
        token = getattr(params, "partialResultToken", None)

        def show(hunks: Sequence[Hunk], text: str) -> None:
            if isinstance(token, str | int):
                value = {"text": text} if request.kind in ABOUT else {"hunks": hunks_json(hunks)}
                server.progress(types.ProgressParams(token, value))

        outcome = await _ended(editor, status, request, show)
        return outcome_json(outcome, encoding())

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, REWRITE]),
    )
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        return code_actions(params, editor, in_editor=shows_edits(server))

    def add_command(kind: Kind) -> None:
        @server.command(f"draftline.{kind}")
        async def command(*arguments: Any) -> Any:
            request = _read(arguments[0] if len(arguments) == 1 else None, f"draftline.{kind}", kind)
            outcome = await _ended(editor, status, request, lambda hunks, text: None)
            return await _carry_out(server, outcome, encoding())

    for kind in KINDS:
        add_command(kind)


async def _ended(editor: Editor, status: Status, request: EditRequest, show: Show) -> EditOutcome:
    """Edit, and tell how it ended, whichever way it did."""
    outcome = EditOutcome("cancelled", "by the editor")
    try:
        outcome = await editor.edit(request, show)
    except Exception as error:
        outcome = EditOutcome("error", f"internal error: {type(error).__name__}")
    finally:
        version = outcome.place.snapshot.version if outcome.place else request.version
        told = Outcome(outcome.reason, detail=outcome.detail, counters=outcome.counters)
        status.request(request.kind, request.uri, version, told)
    return outcome


async def _carry_out(server: LanguageServer, outcome: EditOutcome, encoding: Encoding) -> str | None:
    """Apply an edit in an editor that knows nothing of ours, to the version it was made for, or say why not."""
    if outcome.text:
        _say(server, types.MessageType.Info, outcome.text)
        return outcome.text
    if outcome.reason != "ready" or outcome.place is None:
        quiet = outcome.reason in ("unchanged", "cancelled")
        _say(server, types.MessageType.Info if quiet else types.MessageType.Warning, outcome.detail or outcome.reason)
        return None
    snapshot = outcome.place.snapshot
    identifier = types.OptionalVersionedTextDocumentIdentifier(snapshot.uri, version=snapshot.version)
    edits = text_edits(snapshot, outcome.hunks, encoding)
    change = types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(identifier, list(edits))])
    answer = await server.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(change, label="Draftline"))
    if not answer.applied:
        why = _get(answer, "failureReason") or _get(answer, "failure_reason")  # pygls leaves it as it came
        _say(server, types.MessageType.Warning, f"the editor did not apply the edit{f': {why}' if why else ''}")
    return None


def _say(server: LanguageServer, kind: types.MessageType, text: str) -> None:
    server.window_show_message(types.ShowMessageParams(kind, f"Draftline: {text}"))


def _read(params: Any, name: str, kind: Kind | None = None) -> EditRequest:
    """Raises JsonRpcInvalidParams that says what is wrong."""
    document, where = _get(params, "textDocument"), _get(params, "range")
    ends = [_pair(_get(where, side)) for side in ("start", "end")]
    uri, version = _get(document, "uri"), _get(document, "version")
    if not isinstance(uri, str) or not (version is None or type(version) is int) or None in ends:
        raise JsonRpcInvalidParams(f"{name} needs a textDocument with a uri, and a range")
    given = _get(params, "instruction") or ""
    if not isinstance(given, str):
        raise JsonRpcInvalidParams(f"{name}: the instruction must be a string")
    asked = kind or _get(params, "kind") or "edit"
    if asked not in KINDS:
        raise JsonRpcInvalidParams(f"{name}: the kind must be one of {', '.join(KINDS)}")
    start, end = ends
    assert start is not None
    assert end is not None
    return EditRequest(uri, start, end, asked, given, version)


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _pair(position: Any) -> tuple[int, int] | None:
    line, character = _get(position, "line"), _get(position, "character")
    return (line, character) if type(line) is int and type(character) is int else None


def shows_edits(server: LanguageServer) -> bool:
    """Whether the editor asks for instructions and shows diffs itself (``experimental.draftline.edits``)."""
    experimental = server.client_capabilities.experimental
    ours = experimental.get("draftline") if isinstance(experimental, dict) else getattr(experimental, "draftline", None)
    return (ours.get("edits") if isinstance(ours, dict) else getattr(ours, "edits", None)) is True
