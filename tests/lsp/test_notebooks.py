"""U23: in a notebook the cells before a cell are the text before it, those after it the text after it."""

import pytest
from fake_engine import script
from language_server import root_of, start_server

CODE, MARKUP = 2, 1


@pytest.fixture(scope="module")
def books(folder, running):
    with start_server(folder) as client:
        capabilities = {"textDocument": {"inlineCompletion": {}}, "notebookDocument": {"synchronization": {}}}
        settings = {"debounce_ms": 0, "alternatives": 1, "prefetch": False}
        answer = client.initialize(root=root_of(folder), settings=settings, capabilities=capabilities)
        assert answer["capabilities"]["notebookDocumentSync"]["notebookSelector"] == [
            {"notebook": {"notebookType": "*"}}
        ]
        client.wait_ready()
        yield client


class Book:
    """A notebook as an editor has it."""

    def __init__(self, editor, uri, cells):
        self.editor, self.uri = editor, uri
        self.count = 0
        described = [self.cell(kind, text) for kind, text in cells]
        document = {"uri": uri, "notebookType": "jupyter-notebook", "version": 1, "cells": [c for c, _ in described]}
        texts = [text for _, text in described]
        editor.notify("notebookDocument/didOpen", {"notebookDocument": document, "cellTextDocuments": texts})

    def cell(self, kind, text):
        self.count += 1
        uri = self.cell_uri(self.count - 1)
        language = "python" if kind == CODE else "markdown"
        return {"kind": kind, "document": uri}, {"uri": uri, "languageId": language, "version": 1, "text": text}

    def cell_uri(self, number):
        return f"vscode-notebook-cell:{self.uri.removeprefix('file://')}#W{number}"

    def change(self, **cells):
        document = {"uri": self.uri, "version": 2}
        self.editor.notify("notebookDocument/didChange", {"notebookDocument": document, "change": {"cells": cells}})


@pytest.fixture
def uri(folder):
    path = root_of(folder) / "book.ipynb"
    return path.as_uri()


CELLS = [(CODE, "import math\nr = 2"), (MARKUP, "# Area\n\nof a circle"), (CODE, "area = "), (CODE, "print(area)")]


def asked(engine):
    return "".join(engine.texts("prefix")), "".join(engine.texts("suffix"))


def test_u23_the_cells_around_a_cell_are_the_text_around_it(books, engine, uri):
    engine.answer = lambda request: script("math.pi * r**2")
    book = Book(books, uri, CELLS)
    (item,) = books.inline(book.cell_uri(2), 0, 7)
    assert asked(engine) == ("import math\nr = 2\n\n# # Area\n#\n# of a circle\n\narea = ", "\n\nprint(area)")
    assert item["insertText"] == "math.pi * r**2"
    assert item["range"]["start"] == {"line": 0, "character": 7}


def test_u19_the_prompt_that_is_shown_for_a_cell_is_the_one_that_the_engine_gets(books, engine, uri):
    book = Book(books, uri, [(CODE, "unit = 7"), *CELLS[1:]])
    place = {"textDocument": {"uri": book.cell_uri(2)}, "position": {"line": 0, "character": 7}}
    shown = books.request("draftline/prompt", place)
    books.inline(book.cell_uri(2), 0, 7)
    (request,) = engine.requests
    assert [(s["role"], s["text"]) for s in shown["segments"]] == [(s["role"], s["text"]) for s in request["segments"]]


def test_u23_an_item_ends_before_it_says_the_next_cell_again(books, engine, uri):
    engine.answer = lambda request: script("math.pi * r**2\n\nprint(area)")
    book = Book(books, uri, CELLS)
    assert [item["insertText"] for item in books.inline(book.cell_uri(2), 0, 7)] == ["math.pi * r**2"]


def test_u23_cells_that_change_come_and_go_are_followed(books, engine, uri):
    book = Book(books, uri, CELLS)
    here = {"line": 1, "character": 4}
    edit = {"range": {"start": here, "end": {"line": 1, "character": 5}}, "text": "3"}
    book.change(textContent=[{"document": {"uri": book.cell_uri(0), "version": 2}, "changes": [edit]}])
    cell, text = book.cell(CODE, "h = 5")
    array = {"start": 1, "deleteCount": 1, "cells": [cell]}
    book.change(structure={"array": array, "didOpen": [text], "didClose": [{"uri": book.cell_uri(1)}]})
    books.inline(book.cell_uri(2), 0, 7)
    assert asked(engine)[0] == "import math\nr = 3\n\nh = 5\n\narea = "
    assert books.inline(book.cell_uri(1), 0, 1) == []


def test_u23_beside_text_code_stays_as_it_is(books, engine, uri):
    book = Book(books, uri, [(CODE, "x = 1"), (MARKUP, "We see that "), (MARKUP, "End.")])
    books.inline(book.cell_uri(1), 0, 12)
    assert asked(engine) == ("x = 1\n\nWe see that ", "\n\nEnd.")


def test_u23_a_closed_notebook_is_no_context(books, engine, uri):
    book = Book(books, uri, CELLS)
    cells = [{"uri": book.cell_uri(n)} for n in range(4)]
    books.notify("notebookDocument/didClose", {"notebookDocument": {"uri": uri}, "cellTextDocuments": cells})
    assert books.inline(book.cell_uri(2), 0, 7) == []
    assert engine.requests == []


def test_u25_an_ignored_notebook_is_not_completed(books, engine, folder):
    (root_of(folder) / ".gitignore").write_text("private*.ipynb\n")
    book = Book(books, (root_of(folder) / "private1.ipynb").as_uri(), CELLS)
    assert books.inline(book.cell_uri(2), 0, 7) == []
    assert engine.requests == []
