"""pygls' protocol with our documents, and with errors that are one line and never hold source text or a traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, BinaryIO

from lsprotocol import types
from pygls.exceptions import JsonRpcInternalError, JsonRpcInvalidRequest
from pygls.protocol import LanguageServerProtocol, lsp_method

from lsp.documents import Change, DocumentStore
from lsp.notebooks import Cell, Notebooks

_LARGEST = 2**31 - 1
_LONGEST_HEADER = 1 << 16
_LARGEST_MESSAGE = 1 << 30


class BadMessage(Exception):  # noqa: N818
    """A message that can't be handled. str() is one line that names its method and holds nothing else of it."""

    def __init__(self, method: object, why: str) -> None:
        name = ascii(method)[1:-1][:80] if isinstance(method, str) and method else "a message without a method"
        super().__init__(f"{name} could not be handled: {why}")


class DraftlineProtocol(LanguageServerProtocol):
    """Replaces pygls' document synchronisation, whose cost grows with the size of the file, with ``DocumentStore``."""

    def __init__(self, server: Any, converter: Any) -> None:
        self.documents = DocumentStore()
        self.notebooks = Notebooks()
        super().__init__(server, converter)

    @property
    def initialized(self) -> bool:
        return self._workspace is not None

    @property
    def was_shut_down(self) -> bool:
        return self._shutdown

    # Messages

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Called for every JSON object, innermost first."""
        if len(data) == 2 and "line" in data and "character" in data:
            return {name: _clamped(value) for name, value in data.items()}
        if "jsonrpc" in data and not isinstance(data.get("id", 0), str | int):
            self._refuse(None, types.ErrorCodes.InvalidRequest, "a request's id must be a number or a string")
            raise JsonRpcInvalidRequest
        try:
            return super().structure_message(data)
        except Exception:
            self._distrust_lost_change(data)
            if "id" in data and "method" in data:
                self._refuse(data["id"], types.ErrorCodes.InvalidParams, "the request's parameters are not valid")
            if "method" in data:
                raise BadMessage(data["method"], "its parameters are not valid") from None
            raise

    def handle_message(self, message: Any) -> None:
        method = getattr(message, "method", None)
        if not isinstance(method, str) and not hasattr(message, "jsonrpc"):
            raise JsonRpcInvalidRequest
        problem = None
        if method is not None and not self.initialized and method not in (types.INITIALIZE, types.EXIT):
            problem = types.ErrorCodes.ServerNotInitialized, "the server is not initialized"
        elif method == types.INITIALIZE and self.initialized:
            problem = types.ErrorCodes.InvalidRequest, "the server is initialized already"
        elif method is not None and self._shutdown and method != types.EXIT:
            problem = types.ErrorCodes.InvalidRequest, "the server is shutting down"
        if problem is None and method == types.CANCEL_REQUEST and not isinstance(message.params.id, str | int):
            raise BadMessage(method, "a request's id must be a number or a string")
        if problem is None:
            try:
                super().handle_message(message)
            except Exception as error:
                raise BadMessage(method, f"internal error: {type(error).__name__}") from None
        elif (message_id := getattr(message, "id", None)) is not None:
            self._refuse(message_id, *problem)

    def _send_response(self, msg_id: Any, result: Any | None = None, error: types.ResponseError | None = None) -> None:
        """pygls puts a traceback into the data of an internal error; the editor gets the kind of error alone."""
        if error is not None and error.code == JsonRpcInternalError.CODE:
            kind = error.message.partition(":")[0].strip().rpartition(".")[2]
            error = types.ResponseError(code=error.code, message=f"internal error: {kind}")
        super()._send_response(msg_id, result, error)

    def _refuse(self, msg_id: Any, code: types.ErrorCodes, message: str) -> None:
        self._send_response(msg_id, error=types.ResponseError(code=code.value, message=message))

    def _distrust_lost_change(self, data: Mapping[str, Any]) -> None:
        """A change that can't be read can't be applied either: its document's text isn't known from here on."""
        if data.get("method") != types.TEXT_DOCUMENT_DID_CHANGE:
            return
        params = data.get("params")
        identifier = params.get("textDocument") if isinstance(params, Mapping) else None
        uri = identifier.get("uri") if isinstance(identifier, Mapping) else None
        if isinstance(uri, str) and (document := self.documents.get(uri)) is not None:
            document.in_sync = False

    # Documents

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> Any:
        item = params.text_document
        self.documents.open(item.uri, item.text, item.version, item.language_id)
        yield from self._then(types.TEXT_DOCUMENT_DID_OPEN, params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> Any:
        identifier = params.text_document
        if (document := self.documents.get(identifier.uri)) is not None:
            changes = [_change(change) for change in params.content_changes]
            document.apply(changes, identifier.version, self.position_encoding())
        yield from self._then(types.TEXT_DOCUMENT_DID_CHANGE, params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> Any:
        self.documents.close(params.text_document.uri)
        yield from self._then(types.TEXT_DOCUMENT_DID_CLOSE, params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def lsp_notebook_document__did_open(self, params: types.DidOpenNotebookDocumentParams) -> Any:
        self.notebooks.open(params.notebook_document.uri, [_cell(cell) for cell in params.notebook_document.cells])
        for item in params.cell_text_documents:
            self.documents.open(item.uri, item.text, item.version, item.language_id)
        yield from self._then(types.NOTEBOOK_DOCUMENT_DID_OPEN, params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(self, params: types.DidChangeNotebookDocumentParams) -> Any:
        uri = params.notebook_document.uri
        if (cells := params.change.cells) is not None:
            if (structure := cells.structure) is not None:
                array = structure.array
                new = [_cell(cell) for cell in array.cells or ()]
                self.notebooks.splice(uri, array.start, array.delete_count, new)
                for item in structure.did_open or ():
                    self.documents.open(item.uri, item.text, item.version, item.language_id)
                for identifier in structure.did_close or ():
                    self.documents.close(identifier.uri)
            for content in cells.text_content or ():
                if (document := self.documents.get(content.document.uri)) is not None:
                    changes = [_change(change) for change in content.changes]
                    document.apply(changes, content.document.version, self.position_encoding())
        yield from self._then(types.NOTEBOOK_DOCUMENT_DID_CHANGE, params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def lsp_notebook_document__did_close(self, params: types.DidCloseNotebookDocumentParams) -> Any:
        self.notebooks.close(params.notebook_document.uri)
        for identifier in params.cell_text_documents:
            self.documents.close(identifier.uri)
        yield from self._then(types.NOTEBOOK_DOCUMENT_DID_CLOSE, params)

    def _then(self, method: str, params: Any) -> Any:
        if (handler := self.fm.features.get(method)) is not None:
            yield handler, (params,), None

    def position_encoding(self) -> Any:
        """The negotiated one: ``utf-8``, ``utf-16`` or ``utf-32``."""
        encoding = self.workspace.position_encoding
        return encoding.value if isinstance(encoding, types.PositionEncodingKind) else encoding


class PatientInput:
    """Standard input whose headers are put into the one form that pygls reads.

    A length that no message has is left out, and the server waits for the next header.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        line = self._stream.readline(_LONGEST_HEADER)
        name, _, value = line.partition(b":")
        if name.strip().lower() != b"content-length":
            return line
        digits = value.strip()
        if digits.isdigit() and len(digits) < 12 and int(digits) <= _LARGEST_MESSAGE:
            return b"Content-Length: %d\r\n" % int(digits)
        return b"Content-Length: unusable\r\n"

    def read(self, size: int) -> bytes:
        return self._stream.read(size)


class OneLineFormatter(logging.Formatter):
    """For standard error: the message alone, its exception by kind only (its text may quote a document)."""

    def format(self, record: logging.LogRecord) -> str:
        kind = f" ({record.exc_info[0].__name__})" if record.exc_info and record.exc_info[0] else ""
        return f"draftline: {record.levelname.lower()}: {' '.join(record.getMessage().split())}{kind}"


def _change(change: types.TextDocumentContentChangeEvent) -> Change:
    if isinstance(change, types.TextDocumentContentChangePartial):
        start, end = change.range.start, change.range.end
        return Change(change.text, (start.line, start.character), (end.line, end.character))
    return Change(change.text)


def _cell(cell: types.NotebookCell) -> Cell:
    return Cell(cell.document, cell.kind == types.NotebookCellKind.Markup)


def _clamped(value: Any) -> Any:
    """Numbers beyond what the protocol allows mean "before everything" and "after everything"."""
    return min(max(value, 0), _LARGEST) if isinstance(value, int) and not isinstance(value, bool) else value
