"""The language server over standard input and output: this module only registers what others do.

``main()`` is the command ``draftline lsp``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from lsp.completer import Answer, Completer, Selected
from lsp.completion import Outcome
from lsp.edit.editor import Editor
from lsp.edit.features import add_edits, shows_edits
from lsp.engine import Connect, EngineLink, State
from lsp.feedback import add_parts
from lsp.inline import ACCEPTED, inline_items
from lsp.next_edit.features import AVAILABLE, NextEdit, add_next_edit
from lsp.popup import popup_items
from lsp.prompt_view import add_prompt_view
from lsp.protocol import BadMessage, DraftlineProtocol, OneLineFormatter, PatientInput
from lsp.settings import read_settings
from lsp.status import Status
from lsp.workspace import Workspace, file_path
from server import __version__
from server.client import Claim, EngineClient
from server.wire import Health

FOR_EDITORS = (
    "draftline: lsp is for editors, which start it and talk to it over standard input (README.md has the set-up); "
    "at a shell, use `draftline complete FILE:LINE:COL`"
)

EVERY_NOTEBOOK = types.NotebookDocumentSyncOptions(
    [types.NotebookDocumentFilterWithNotebook(types.NotebookDocumentFilterNotebookType("*"))]
)

Handler = TypeVar("Handler", bound=Callable[..., Any])


class DraftlineServer(LanguageServer):
    """One editor window. connect: how to reach the engine."""

    protocol: DraftlineProtocol

    def __init__(self, connect: Connect) -> None:
        super().__init__(
            "draftline", __version__, protocol_cls=DraftlineProtocol, notebook_document_sync=EVERY_NOTEBOOK
        )
        self.status = Status(self)
        self.link = EngineLink(connect, self._engine_state)
        self.completer = Completer(self.protocol.documents, Workspace(), self.link, self.protocol.notebooks)
        self.editor = Editor(self.completer, self.link)
        self.next_edit = NextEdit(self.completer)
        self.completer.reading = self.status.reading

    def report_server_error(self, error: Exception, source: Any) -> None:
        """One line in the editor's log; an error's own text may quote a document, so its kind must do."""
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            line = "a message from the editor is not valid JSON; it was left out"
        elif isinstance(error, RecursionError):
            line = "a message from the editor is nested too deeply to be read; it was left out"
        elif isinstance(error, BadMessage):
            line = str(error)
        elif isinstance(error, JsonRpcException):
            line = f"a message from the editor could not be handled: {error.MESSAGE}"
        else:
            line = f"internal error: {type(error).__name__}"
        self.status.log(line, types.MessageType.Error)

    @property
    def has_ghost_text(self) -> bool:
        """Whether the editor asks for inline completions too."""
        documents = self.client_capabilities.text_document
        return documents is not None and documents.inline_completion is not None

    def text_changed(self, uri: str) -> None:
        """A document was opened, changed or closed."""
        self.completer.changed(uri)
        self.editor.changed(uri)
        self.next_edit.changed(uri)

    def apply_settings(self, value: object) -> None:
        self.completer.settings, problems = read_settings(value, self.completer.settings)
        for problem in problems:
            self.status.log(problem, types.MessageType.Warning)

    def take_roots(self) -> None:
        """The workspace's folders as they are now, or the one root of an older editor."""
        uris = [folder.uri for folder in self.workspace.folders.values()]
        if not uris and self.workspace.root_uri:
            uris = [self.workspace.root_uri]
        self.completer.workspace.set_roots(path for uri in uris if (path := file_path(uri)))

    async def answer(
        self,
        kind: str,
        uri: str,
        position: types.Position,
        *,
        typing: bool,
        selected: Selected | None = None,
        waits: bool = True,
    ) -> Answer:
        """Complete, and tell how the request ended, whichever way it did."""
        answer = Answer(Outcome("cancelled", detail="by the editor"))
        try:
            answer = await self.completer.answer(
                uri, position.line, position.character, typing=typing, selected=selected, waits=waits
            )
        except Exception as error:
            answer = Answer(Outcome("error", detail=f"internal error: {type(error).__name__}"))
        finally:
            self.status.request(kind, uri, answer.version, answer.outcome)
        return answer

    def _engine_state(self, state: State, message: str, health: Health | None) -> None:
        if health is not None:
            self.completer.budget.engine(health.context_length, health.prefill_tokens_per_second)
            self.completer.forget()
            self.editor.chat = health.chat
        self.status.state(state, message, health.model_id if health else None)


def create_server(connect: Connect) -> DraftlineServer:
    server = DraftlineServer(connect)
    completer = server.completer

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        completer.encoding = server.protocol.position_encoding()
        server.take_roots()
        server.apply_settings(params.initialization_options)

    @server.feature(types.INITIALIZED)
    async def initialized(params: types.InitializedParams) -> None:
        server.link.start()
        if shows_edits(server):
            server.next_edit.tell = lambda found: server.protocol.notify(AVAILABLE, found)

    @server.feature(types.SHUTDOWN)
    async def shutdown(params: None) -> None:
        completer.stop()
        server.next_edit.stop()
        await server.link.aclose()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configuration(params: types.DidChangeConfigurationParams) -> None:
        server.apply_settings(params.settings)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def folders(params: types.DidChangeWorkspaceFoldersParams) -> None:
        server.take_roots()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.text_changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        server.text_changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.text_changed(params.text_document.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_changed(params: types.DidChangeNotebookDocumentParams) -> None:
        cells = params.change.cells
        structure = cells.structure if cells else None
        gone = [cell.uri for cell in (structure.did_close or ())] if structure else []
        for uri in [*gone, *(content.document.uri for content in (cells.text_content or () if cells else ()))]:
            server.text_changed(uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_closed(params: types.DidCloseNotebookDocumentParams) -> None:
        for cell in params.cell_text_documents:
            server.text_changed(cell.uri)

    @server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def inline(params: types.InlineCompletionParams) -> types.InlineCompletionList:
        typing = params.context.trigger_kind != types.InlineCompletionTriggerKind.Invoked
        chosen = params.context.selected_completion_info
        answer = await server.answer(
            "inline",
            params.text_document.uri,
            params.position,
            typing=typing,
            selected=Selected(_pair(chosen.range.start), _pair(chosen.range.end), chosen.text) if chosen else None,
        )
        return inline_items(answer, completer.encoding, completer.offers)

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions())
    async def popup(params: types.CompletionParams) -> types.CompletionList:
        if not completer.settings.popup:
            return types.CompletionList(is_incomplete=False, items=[])
        # A popup waits for the slowest of its sources: where there is ghost text, it must not be us.
        waits = not server.has_ghost_text
        answer = await server.answer("popup", params.text_document.uri, params.position, typing=True, waits=waits)
        return popup_items(answer, completer.encoding)

    @server.command(ACCEPTED)
    def accepted(*item: Any) -> None:
        server.status.log("item accepted")

    add_parts(server, completer.offers)
    add_prompt_view(server, completer)
    add_edits(server, server.editor, server.status, lambda: completer.encoding)
    add_next_edit(server, server.next_edit, completer, server.status)
    return server


def _pair(position: types.Position) -> tuple[int, int]:
    return position.line, position.character


def main(model: str | None = None) -> int:
    """Serve one editor until it leaves. model: a path or a known name, None for the default.

    Returns the process's exit status: 0 after an orderly shutdown.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("pygls", "lsprotocol", "httpx", "httpcore"):
        # pygls logs whole messages, and with them the user's source text.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C ends the process, as other signals do: the thread that reads would hold up an orderly end.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Whatever prints by mistake must not end up between the frames of the protocol.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    claim = Claim()
    server = create_server(
        lambda: EngineClient.connect(model=model, claim=claim, tell=lambda line: server.status.log(line))
    )
    if sys.stdin.isatty():
        print(FOR_EDITORS, file=sys.stderr, flush=True)
    server.start_io(PatientInput(sys.stdin.buffer), output)  # type: ignore[arg-type]
    if not server.protocol.initialized and not sys.stdin.isatty():
        print(FOR_EDITORS, file=sys.stderr, flush=True)
    return 0 if server.protocol.was_shut_down else 1


if __name__ == "__main__":
    sys.exit(main())
