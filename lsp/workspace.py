"""The workspace's folders: which one a document belongs to, and which other open documents go into its prompt."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from pygls.uris import to_fs_path

from lsp.completion import Workplace
from lsp.documents import Document
from prompts.ignore import IgnoreRules, looks_secret
from prompts.ledger import Ledger
from prompts.text import SourceFile


def file_path(uri: str) -> Path | None:
    """Where the document is on disk; None for an untitled one, and for a name that no file can have."""
    path = to_fs_path(uri) if uri[:5].lower() == "file:" else None
    return Path(os.path.normpath(path)) if path and "\0" not in path else None


class Workspace:
    """The roots of one editor window. A document outside all of them is completed from its own text alone."""

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        self.roots: list[Path] = []
        self._ignore = IgnoreRules()
        self._ledgers: dict[Path | None, Ledger] = {}
        self.set_roots(roots)

    def set_roots(self, roots: Iterable[Path]) -> None:
        """The innermost root of nested ones is a document's."""
        self.roots = sorted(roots, key=lambda root: len(root.parts), reverse=True)
        self._ledgers = {root: ledger for root, ledger in self._ledgers.items() if root in self.roots}

    def root_of(self, path: Path | None) -> Path | None:
        if path is None:
            return None
        return next((root for root in self.roots if path.is_relative_to(root)), None)

    def excluded(self, uri: str) -> bool:
        """True for a file whose text must not reach a prompt."""
        path = file_path(uri)
        if path is None:
            # A new file that is to become a secret, or one on another machine: the name is all there is to go by.
            return looks_secret(unquote(uri.partition(":")[2].partition("?")[0].partition("#")[0]))
        return self._ignore.excluded(path, self.root_of(path))

    def shown_path(self, uri: str) -> str | None:
        """The path that the model sees: relative to the root, the bare name outside, None for an untitled document."""
        path = file_path(uri)
        if path is None:
            return None
        root = self.root_of(path)
        return path.relative_to(root).as_posix() if root else path.name

    def surroundings_of(self, document: Document, documents: Iterable[Document]) -> Workplace:
        """The other open documents under the same root, in the order of ``documents``."""
        root = self.root_of(file_path(document.uri))
        ledger = self._ledgers.setdefault(root, Ledger())
        if root is None:
            return Workplace(ledger=ledger)
        others = [
            SourceFile(self.shown_path(other.uri), other.snapshot().source)
            for other in documents
            if other is not document
            and other.in_sync
            and self.root_of(file_path(other.uri)) == root
            and not self.excluded(other.uri)
        ]
        return Workplace(others, root.name, ledger)
