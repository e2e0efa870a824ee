"""What is made of a model's text in each language: tables in ``fixtures``, one a language, with a scripted engine.

A table's case is a document with the cursor at ``‸``, what the model says, and the document when the item was
accepted, or the reason why there is none.
"""

import asyncio
import re
from pathlib import Path

import pytest

from lsp.balance import unbalanced
from lsp.completion import complete_at
from lsp.fit import count_faults
from lsp.languages import language_of, parser_of
from prompts.text import Cursor
from server.request import Counters
from server.wire import CompletionFinished, CompletionText, Health

FIXTURES = Path(__file__).parent / "fixtures"


def cases():
    for table in sorted(FIXTURES.glob("*.txt")):
        for case in re.split(r"^## ", table.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, _, body = case.partition("\n")
            document, _, rest = body.partition("--- model\n")
            model, kind, result = re.split(r"^--- (after|reason)\n", rest, flags=re.MULTILINE)
            parts = (document.removesuffix("\n"), model.removesuffix("\n"), kind, result.rstrip("\n"))
            yield pytest.param(table.name.removesuffix(".txt"), *parts, id=f"{table.name.partition('.')[0]}: {title}")


class Engine:
    """Says what the case says; what it is asked for is the real prompt."""

    def __init__(self, text):
        self.text = text

    async def complete(self, request):
        yield CompletionText(self.text)
        yield CompletionFinished("stop", Counters())

    async def health(self):
        return Health("ready", "0", 1, "/m", "m", "", context_length=4096)


def accept(document, model, name, line_end):
    """The reason, and the document with the item in it."""
    before, after = document.split("‸")
    cursor = Cursor(before.count("\n"), len(before.rpartition("\n")[2]))
    text = (before + after).replace("\n", line_end)
    outcome = asyncio.run(complete_at(Engine(model), text, name, cursor))
    return outcome.reason, before + outcome.text + after[outcome.replaces :]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize(("name", "document", "model", "kind", "result"), list(cases()))
def test_text_rules(name, document, model, kind, result, line_end):
    reason, applied = accept(document, model, name, line_end)
    if kind == "reason":
        assert reason == result
    else:
        assert applied.rstrip("\n") == result
        assert reason == "shown"
    language = language_of("", name)
    plain = document.replace("‸", "")
    assert unbalanced(applied, language) <= unbalanced(plain, language)
    assert count_faults(parser_of(language), applied) <= count_faults(parser_of(language), plain)


def test_there_is_a_table_for_each_language():
    names = {path.name.partition(".")[0] for path in FIXTURES.glob("*.txt")}
    assert names == {
        *("python", "typescript", "tsx", "javascript", "rust", "go", "c", "cpp", "java", "json", "yaml", "markdown"),
        "shell",
    }
