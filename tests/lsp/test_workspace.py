"""Which root a document belongs to, and what of the other documents goes with it."""

from pathlib import Path

import pytest

from lsp.documents import Document
from lsp.workspace import Workspace

ROOTS = [Path("/w/shop"), Path("/w/shop/nested"), Path("/w/bank")]


def paths_beside(uri, *others):
    documents = [Document.from_text(name, "text") for name in (*others, uri)]
    return [file.path for file in Workspace(ROOTS).surroundings_of(documents[-1], documents).others]


def test_u22_nothing_crosses_roots_and_the_innermost_root_counts():
    uris = ["file:///w/shop/a.py", "file:///w/bank/b.py", "file:///w/shop/nested/c.py", "file:///x.py", "untitled:1"]
    assert paths_beside("file:///w/shop/z.py", *uris) == ["a.py"]
    assert paths_beside("file:///w/shop/nested/z.py", *uris) == ["c.py"]
    assert paths_beside("file:///elsewhere/z.py", *uris) == []
    assert paths_beside("untitled:2", *uris) == []


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///w/shop/pkg/a%20b.py", "pkg/a b.py"),
        ("file:///w/shop/nested/c.py", "c.py"),
        ("file:///home/me/secret-project/d.py", "d.py"),
        ("untitled:Untitled-1", None),
        ("git:/w/shop/a.py?ref", None),
    ],
)
def test_a_path_is_shown_relative_to_its_root_and_never_absolute(uri, path):
    assert Workspace(ROOTS).shown_path(uri) == path


def test_a_document_that_is_out_of_sync_is_no_context():
    stale = Document.from_text("file:///w/bank/a.py", "text")
    stale.in_sync = False
    own = Document.from_text("file:///w/bank/b.py", "text")
    assert Workspace(ROOTS).surroundings_of(own, [stale, own]).others == []


@pytest.mark.parametrize(
    ("uri", "excluded"),
    [
        ("file:///w/shop/.env", True),
        ("FILE:///w/shop/%2Eenv", True),
        ("untitled:/w/shop/.env", True),
        ("untitled:.env.local", True),
        ("vscode-remote://ssh-remote%2Bbox/home/me/.ssh/config", True),
        ("git:/w/shop/server.key?%7B%22ref%22%3A%22~%22%7D", True),
        ("untitled:Untitled-1", False),
        ("vscode-notebook-cell:/w/shop/a.ipynb#.env", False),
        ("", False),
    ],
)
def test_u25_what_looks_like_a_secret_is_excluded_whatever_its_scheme(uri, excluded):
    assert Workspace(ROOTS).excluded(uri) is excluded


def test_u22_a_path_with_dots_belongs_where_it_leads():
    assert paths_beside("file:///w/shop/z.py", "file:///w/shop/../bank/b.py", "file:///w/bank/../shop/a.py") == ["a.py"]
