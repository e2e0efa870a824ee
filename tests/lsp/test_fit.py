"""How much of an item fits, where the tables of ``test_text_rules`` don't reach: cost, unknown languages, broken
files."""

from pathlib import Path

import pytest

import lsp.fit
from lsp.balance import unbalanced
from lsp.fit import LONGEST_REGION, fit
from lsp.indent import reindent, unit_of
from lsp.items import Item
from lsp.languages import language_of, parser_of

MODULE = "".join(f"def f{n}(a):\n    return a + {n}\n\n\n" for n in range(1250))


@pytest.fixture
def parsed(monkeypatch):
    """The lengths of all texts that are parsed."""
    lengths = []
    count = lsp.fit.count_faults

    def counted(parser, text):
        lengths.append(len(text))
        return count(parser, text)

    monkeypatch.setattr(lsp.fit, "count_faults", counted)
    return lengths


def test_in_a_file_of_5000_lines_an_item_costs_a_few_parses_of_its_region(parsed):
    assert fit("compute(a)", MODULE + "x = ", "\n" + MODULE, "python") == Item("compute(a)")
    assert len(parsed) == 3
    assert max(parsed) < 5000


def test_what_never_fits_costs_a_bounded_number_of_parses(parsed):
    text = "\n".join(["if a b c:"] * 60)
    assert fit(text, MODULE, "\n" + MODULE, "python") is None
    assert len(parsed) <= lsp.fit.MOST_PARSED + 2


def test_a_region_without_an_end_is_not_judged(parsed):
    text = "x = [" + "1, " * LONGEST_REGION
    assert fit("2, 3", text, "]", "python") == Item("2, 3")
    assert parsed == []


def test_a_fault_elsewhere_in_the_file_takes_nothing_from_an_item():
    broken = "def f(:\n    pass\n\n\n"
    assert fit("a + b", broken + "x = ", "\ny = 1\n", "python") == Item("a + b")


def test_in_a_language_that_is_not_known_brackets_and_quotes_are_counted():
    assert fit("(a (b", "(define x ", ")", "") is None
    assert fit('(f "a"))', "(define x ", ")", "") == Item('(f "a")')


@pytest.mark.parametrize(
    ("name", "path", "language"),
    [
        ("typescriptreact", None, "tsx"),
        ("python", "notes.md", "python"),
        ("plaintext", "a/b.RS", "rust"),
        ("", "untitled:x", ""),
        ("", None, ""),
        ("cobol", "a.cbl", ""),
    ],
)
def test_a_language_is_the_editors_or_else_the_file_names(name, path, language):
    assert language_of(name, path) == language


@pytest.mark.parametrize(
    "language",
    ["python", "javascript", "typescript", "tsx", "rust", "go", "c", "cpp", "java", "json", "bash", "yaml", "markdown"],
)
def test_every_language_has_a_grammar_that_sees_text_and_takes_anything(language):
    parser = parser_of(language)
    assert lsp.fit.count_faults(parser, "") == 0
    lsp.fit.count_faults(parser, "\ud800 '\" ((( \0 \u2028")


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("python", "'''it's (\n''' + f(')') # ]", 0),
        ("python", "print('a", 2),
        ("rust", "fn f<'a>(c: char) { c == '(' }", 0),
        ("go", "x := `(\n`", 0),
        ("bash", "case x in\n a) ;;\nesac", 0),
        ("yaml", "it's: [a, 'b']", 0),
        ("markdown", "- it's (:\n```\n[\n```\n[", 1),
        ("c", "/* ( */ '(' // (", 0),
        ("", 'f("(")]', 1),
    ],
)
def test_u01_what_has_no_partner_is_counted_as_the_language_has_it(language, text, count):
    assert unbalanced(text, language) == count


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("class A:\n  def f(self):\n    pass", "  "),
        ("if (x) {\n    y();\n}", "    "),
        ("a\n\tb\n\tc", "\t"),
        ("x = 1\ny = 2", ""),
    ],
)
def test_u03_the_unit_is_what_the_file_uses(text, unit):
    assert unit_of(text) == unit


@pytest.mark.parametrize(
    ("text", "prefix", "expected"),
    [
        ("    b", "if a:\n    x\n    y = ", "b"),  # a second space after the one that is there
        ("        b", "if a:\n    if c:\n        d\n    ", "    b"),  # no further in than the line above
        ("\n\n    c", "if a:\n    b\n    ", "\n\n    c"),
        ("    b", "if a:\n", "    b"),
        ("f(\n        b,\n        c)", "if a:\n    b\n\nx = ", "f(\n        b,\n        c)"),  # hanging, not a unit
    ],
)
def test_u03_the_first_line_adds_no_white_space_that_is_there(text, prefix, expected):
    assert reindent(text, prefix, "") == expected


@pytest.mark.parametrize(
    ("text", "after", "item"),
    [
        ("a)", ")\n", Item("a")),
        ("a)\n    b", ")\n", Item("a)\n    b", 1)),
        (" a )", ")\n", Item(" a )", 1)),  # without the bracket it would end with a blank
        ("g(a)", ")\n", Item("g(a)")),
    ],
)
def test_u01_no_more_is_replaced_than_has_to_be(text, after, item):
    assert fit(text, "with f(", after, "") == item


FILES = [Path(lsp.fit.__file__).with_name(name) for name in ("completer.py", "documents.py", "filters.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_u05_what_a_real_file_goes_on_with_always_fits(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        end = number + 1
        while end < len(lines) and lines[end][: indent + 1].isspace():
            end += 1
        if not line.strip() or line.strip()[0] in ')]}"':
            continue
        text = "\n".join([line.lstrip(), *lines[number + 1 : end]]).rstrip()
        before, after = "\n".join([*lines[:number], line[:indent]]), "\n" + "\n".join(lines[end:])
        assert fit(text, before, after, "python") == Item(text), f"line {number + 1}"
