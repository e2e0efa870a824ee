"""Stop rules: where a line and a block end, and that no cut breaks a text that parses (U05)."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from prompts import stops
from prompts.stops import MAX_LINES, choose_stop, stop_rule
from prompts.syntax import LineLexer, guess_family


def kept(name: str, prefix: str, suffix: str, text: str, step: int = 1) -> str:
    """What a rule leaves of a text that comes in pieces of `step` characters."""
    rule = stop_rule(name, prefix, suffix)
    assert rule is not None
    for end in (*range(step, len(text), step), len(text)):
        length = rule(text[:end])
        if length is not None:
            return text[:length]
    return text


# --- line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "suffix", "text", "expected"),
    [
        ("x = ", "\n", "1\ny = 2\n", "1"),
        ("x = ", "\n", "1  \n", "1"),
        ("x = ", "\n", "1", "1"),
        ("x = 1", "\n", "\ny = 2\n", ""),  # the line was complete
        ("    ", "\n", "y = 2\nz", "y = 2"),
        ("    ", "\n", "\n    y = 2\nz", "\n    y = 2"),  # on a blank line, blank lines may come first
        ("    ", "\n", "\n\n\n\n\n    y = 2\n", ""),  # but not many
        ("    ", "\n    y = 2\n", "y = 2\nz", ""),  # this line stands there already
        ("", "\n\nb\n", "\n\nb\nc", ""),
        ("foo(", ")\n", "[1,\n 2])\n", "[1,"),  # a line, whatever it opens
    ],
)
def test_line_is_the_rest_of_the_line(prefix: str, suffix: str, text: str, expected: str) -> None:
    assert kept("line", prefix, suffix, text) == expected


def test_none_never_stops_and_other_names_are_refused() -> None:
    assert stop_rule("none", "a", "b") is None
    with pytest.raises(ValueError, match="'page'; use 'none', 'line' or 'block'"):
        stop_rule("page", "a", "b")


# --- block -----------------------------------------------------------------------------------------------------

FUNCTION = "\n    y = x\n\n    if y:\n        return 2\n    else:\n        return 3\n"


@pytest.mark.parametrize(
    ("prefix", "suffix", "text", "expected"),
    [
        # nothing opens a block: as `line`
        ("x = ", "\n", "1\ny = 2\n", "1"),
        ("x = 1", "\n", "\ny = 2\n", ""),
        ("    ", "\n", "y = 2\nz", "y = 2"),
        ("if x:\n    a()\n    ", "\n", "b()\n    c()\n", "b()"),
        ("x = ", "\n", '"a:"\ny\n', '"a:"'),
        ("x = ", "\n", "1  # note:\ny\n", "1  # note:"),
        # a line that ends with a colon
        ("def f(x):", "\n", FUNCTION + "\n\nz = 1\n", FUNCTION[:-1]),
        ("def f(x", "\n", "):" + FUNCTION + "\n\nz = 1\n", "):" + FUNCTION[:-1]),
        ("def f(x):\n    ", "\n", FUNCTION[5:] + "\n\nz = 1\n", FUNCTION[5:-1]),
        ("def f(x):\n", "\n", FUNCTION[1:] + "\n\nz = 1\n", FUNCTION[1:-1]),
        ("", "\n", "for x in y:\n    a(x)\nb()\n", "for x in y:\n    a(x)"),
        ("", "\n", "try:\n    a()\nexcept E:\n    b()\nfinally:\n    c()\nelsewhere = 1\n",
         "try:\n    a()\nexcept E:\n    b()\nfinally:\n    c()"),
        ("    ", "\n", "if a:  # yes\n        b\n    c\n", "if a:  # yes\n        b"),
        # the opening line's indent is that of the line where its bracket stands
        ("def f(a,\n      b):\n    ", "\n", "x\n    y\nz\n", "x\n    y"),
        # brackets
        ("x = ", "\n", "[\n    1,\n    2,\n]\ny\n", "[\n    1,\n    2,\n]"),
        ("f(", "\n", "a,\n  b)\nc\n", "a,\n  b)"),
        ("f(", ")\n", "a, b\nc\n", "a, b"),
        ("f(", ")\n", "\n    a,\n    b,\n)\nc\n", "\n    a,\n    b,"),  # the closer is there already
        ("x = {\n    ", "\n}\n", '"a": 1,\n    "b": 2,\n}\ny\n', '"a": 1,\n    "b": 2,'),
        ("x = {\n    ", "\n", '"a": 1,\n    "b": 2,\n}\ny\n', '"a": 1,\n    "b": 2,\n}'),
        # braces
        ("", "\n", "if (a) {\n  b();\n}\nelse {\n  c();\n}\nd();\n", "if (a) {\n  b();\n}\nelse {\n  c();\n}"),
        ("", "\n", "f(function () {\n  b();\n});\nd();\n", "f(function () {\n  b();\n});"),
        ("if (a) {", "}\n", "\n  b();\n  c();\n}\nd();\n", "\n  b();\n  c();"),
        ("int f(void);\nint g(void);\n", "\n", "int f(void) { // {\n  a();\n  /* } ( */\n}\nint h;\n",
         "int f(void) { // {\n  a();\n  /* } ( */\n}"),
        # strings and here-documents
        ("x = ", "\n", '"""a:\nb (\n"""\ny\n', '"""a:\nb (\n"""'),
        ('def f():\n    """', "\n", 'Doc.\n\n    More: (x\n    """\n    return 1\n', 'Doc.\n\n    More: (x\n    """'),
        ('def f():\n    """', '"""\n    return 1\n', "Doc.\n    More.\n", "Doc."),
        ('"""\nDoc\n', '\n"""\n', "has lines (\nand more\n", "has lines ("),  # a string opened by others ends nothing
        ("#!/bin/sh\n", "\n", "cat <<END\nif (\n\nEND\necho\n", "cat <<END\nif (\n\nEND"),
        # shell words
        ("#!/bin/sh\n", "\n", "if a; then\nb\nfi\nc\n", "if a; then\nb\nfi"),
        ("#!/bin/sh\n", "\n", "ls |\n  sort\nc\n", "ls |\n  sort"),
        ("#!/bin/sh\n", "\n", "echo if do\nc\n", "echo if do"),
        # other things that ask for a next line
        ("", "\n", "@cached\ndef f():\n    return 1\nx\n", "@cached\ndef f():\n    return 1"),
        ("# T\n\n", "\n", "```sh\nif a:\n\n# b\n```\nc\n", "```sh\nif a:\n\n# b\n```"),
        ("# T\n\n", "\n", "| a | b |\n|---|---|\n| 1 | 2 |\n\nc\n", "| a | b |\n|---|---|\n| 1 | 2 |"),
        # inside a fence that others opened, code is code
        ("# T\n\n```py\n", "\n```\n", "if a:\n    b\n    c\nd\n```\n", "if a:\n    b\n    c"),
        ("# T\n\n```py\n", "\n", "x\n```\n", "x"),
        ("# T\n\n```py\nx\n", "\n", "```\n\nThe end\n", "```"),
        # what the suffix has next is not written again
        ("def f():\n    ", "\n    return x\n", "x = 1\n    return x\n", "x = 1"),
        ("def f():\n    ", "\n\n    return x\n", "return x\n", ""),
        # blank lines without end
        ("def f():\n    ", "\n", "a()\n\n\n\n\n\n", "a()"),
        ("    ", "\n", "\n\n\n\n\n\n", ""),
    ],
)  # fmt: skip
def test_block_ends_where_the_syntax_closes_it(prefix: str, suffix: str, text: str, expected: str) -> None:
    assert kept("block", prefix, suffix, text) == expected


def test_a_long_block_ends_at_a_place_where_nothing_is_open() -> None:
    short = "".join(f"    a{i}()\n" for i in range(MAX_LINES - 2))
    rest = "    try:\n        f(\n            b,\n        )\n    except E:\n        c()\n    d()\n"
    text = "def f():\n" + short + rest * 2
    assert kept("block", "", "", text) == "def f():\n" + short + rest[: rest.index("    d()") - 1]


def test_text_without_an_end_in_a_bracket_is_not_cut() -> None:
    text = "x = [\n" + "    1,\n" * 100
    assert kept("block", "", "", text) == text


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("x = ", "\n", "block"),
        ("def f():\n    ", "\nx", "block"),
        ("f(", ")\n", "block"),
        ('f("', '");\n', "block"),
        ("", "", "block"),
        ("x = ", " + 1\n", "line"),
        ("    ", "return 1\n", "line"),
    ],
)
def test_ghost_text_is_a_line_where_text_follows_and_a_block_elsewhere(prefix: str, suffix: str, expected: str) -> None:
    assert choose_stop(prefix, suffix) == expected


# --- the answer depends on the text alone ----------------------------------------------------------------------

PIECES = [
    "\n", "\n", "\n    ", "\n  ", " ", "a", "else", "el", "if a:", "(", ")", "{", "}", "[", "]", ",", ":", '"', "'",
    '"""', "```", "#", "//", "/*", "*/", "\\", "fi", "do", "done", "; then", "<<E", "\nE\n", "try:", "|", "}\n", "\t",
]  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
surroundings = st.sampled_from(
    [
        ("", ""),
        ("def f():\n    ", "\n    a\n"),
        ("f(", ")\n"),
        ("{\n", "\n}\n"),
        ("#!/bin/sh\n", "\nfi\n"),
        ("x;\ny;\n", ""),
    ]
)


@given(st.sampled_from(["line", "block"]), surroundings, pieces, st.integers(2, 9))
def test_the_cut_is_the_same_however_the_text_is_cut_into_tokens(
    name: str, around: tuple[str, str], text: str, step: int
) -> None:
    assert kept(name, *around, text) == kept(name, *around, text, step) == kept(name, *around, text, len(text) or 1)


@given(st.sampled_from(["line", "block"]), surroundings, pieces)
def test_what_is_settled_is_never_taken_back(name: str, around: tuple[str, str], text: str) -> None:
    rule = stop_rule(name, *around)
    assert rule is not None
    settled = 0
    for end in range(1, len(text) + 1):
        length = rule(text[:end])
        if length is not None:
            assert settled <= length
            return
        settled = max(settled, rule.settled(text[:end]))


def test_whole_lines_are_settled() -> None:
    rule = stop_rule("block", "def f():\n    ", "")
    assert rule is not None
    assert rule.settled("a = 1\n    b") == len("a = 1")
    assert rule.settled("a = 1") == 0  # the suffix may have this line
    rule = stop_rule("block", "a = ", "")
    assert rule is not None
    assert rule.settled("1 + ") == len("1 +")


def test_a_rule_may_be_asked_about_another_text() -> None:
    rule = stop_rule("block", "", "")
    assert rule is not None
    assert rule("x = 1\ny") == 5
    assert rule("if x:\n") is None
    assert rule("x = 1\ny") == 5


DOCSTRING = (
    'class A:\n    def f(self):\n        """Text:\n\n        more (of it.\n        """\n        return 1\n\n' * 20
)


@pytest.mark.parametrize("missing", range(7))
def test_a_prefix_that_begins_inside_a_string_is_read_right(missing: int) -> None:
    prefix = DOCSTRING.split("\n", missing)[-1] + "    "
    text = "def g(self):\n        return 2\n\nclass B:\n"
    assert kept("block", prefix, "\n", text) == "def g(self):\n        return 2"


@pytest.mark.parametrize("line", ["x = '" + "a\\n" * 300_000, "{" * 600_000, '"""' + "a'b" * 300_000, "[1, " * 200_000])
def test_a_very_long_line_is_not_read_whole(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    read = LineLexer.read

    def measured(self: LineLexer, line: str) -> str:
        nonlocal longest
        longest = max(longest, len(line))
        return read(self, line)

    monkeypatch.setattr(stops.LineLexer, "read", measured)
    for prefix in (line, line + "\n"):
        rule = stop_rule("block", prefix, "")
        assert rule is not None
        rule("a\nb\n")
    assert 5000 <= longest < 6000


def test_every_line_is_read_once_however_many_tokens_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x = [\n" + '    "some words", 1,\n' * 200
    lines: list[str] = []
    read = LineLexer.read

    def counted(self: LineLexer, line: str) -> str:
        lines.append(line)
        return read(self, line)

    rule = stop_rule("block", "", "")
    assert rule is not None
    monkeypatch.setattr(stops.LineLexer, "read", counted)
    for end in range(1, len(text)):
        assert rule(text[:end]) is None
    assert len(lines) == 200


# --- U05: a cut leaves text that parses ------------------------------------------------------------------------
#
# A hole is made in a document: whole lines, or from a place in a line on, such that the document without it would be
# whole too. The model writes what stood there and goes on with the rest of the document. Wherever the rule cuts, the
# document must parse again.

JSON = """\
{
  "name": "shop // (not a comment",
  "empty": {},
  "ports": [
    80,
    443
  ],
  "nested": {
    "list": [
      {"a": [1, 2, {"b": null}]},
      {
        "quote": "a \\"{ b",
        "on": true
      }
    ],
    "last": -1.5e3
  },
  "end": "}"
}
"""

SHELL = """\
#!/bin/sh
# Copies every log (even the "old" ones); it's careful.
set -eu

backup() {
    dir=$1
    for f in "$dir"/*.log; do
        [ -e "$f" ] || continue
        case "$f" in
            *old*) echo "skip $f" ;;
            *)
                cp "$f" "$2/${f##*/}.bak"
                ;;
        esac
    done
}

if [ $# -lt 2 ]; then
    cat <<USAGE
usage: $0 DIR (target
  if it's required
USAGE
    exit 1
elif [ -d "$1" ]
then
echo "not indented"
else
    echo 'two
lines (of text' && echo if
fi

backup "$1" "$2" |
    sort
while read -r line; do
    total=$((total + 1)); done < "$1"
echo "first
 second (line"
"""

MARKDOWN = """\
# The shop

It's a *small* text (with brackets
over two lines) and `code (`. For example:

- one: `a`
- two
  - three ]

```python
def f():
    return {

    }
# not a heading
```

| name | value |
|------|-------|
| a    | 1     |
| b    | (2    |

1. First, run this:

   ```sh
   if true; then
   echo 'it is'
   fi
   ```

~~~
```
~~~

The end.
"""

PYTHON = '''\
"""A module: (with a docstring."""

import os


@cached
def area(width: int, height: int,
         unit: str = "m") -> dict[str, int]:
    """Area of a box:

    {not code
    """
    if width < 0:
        raise ValueError(
            f"negative: {width}",
        )
    elif height < 0:
        height = -height  # don't (
    else:
        pass

    try:
        size = {
            "a": width * height,  # :
        }
    except OverflowError:
        size = None
    finally:
        print("done:")
    return size


class Box:
    width = 1

    def grow(self) -> None:
        for _ in range(3):
            while self.width < 9:
                self.width += (1 +
                               2)
        with open(os.devnull) as file, \\
                open(os.devnull) as other:
            file.write(other.read())


print(area(1, 2))
'''


LONGEST_HOLE = 12
"""Lines."""


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


SHELL_PROGRAM = shutil.which("bash") or shutil.which("sh")


@cache
def is_shell(text: str) -> bool:
    assert SHELL_PROGRAM is not None
    result = subprocess.run([SHELL_PROGRAM, "-n"], input=text, text=True, capture_output=True, check=False)
    return result.returncode == 0 and not result.stderr


def is_shell_part(text: str) -> bool:
    """Commands, branches of an if, or arms of a case."""
    return any(is_shell(whole) for whole in (text, f"if :; then :\n{text}\nfi", f"case x in\n{text}\nesac"))


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def block_kinds(text: str) -> list[str]:
    """For every line of a Markdown text: fence, table or other."""
    kinds = ["other"] * (text.count("\n") + 1)
    for token in MarkdownIt().enable("table").parse(text):
        if token.map and token.type in ("fence", "table_open"):
            first, last = token.map
            for line in range(first, last):
                kinds[line] = token.type
    return kinds


def same_blocks(prefix: str, text: str, suffix: str, document: str) -> bool:
    """Every line of the result is in the same kind of block as it was in the document."""
    found, wanted = block_kinds(prefix + text + suffix), block_kinds(document)
    before, after = (prefix + text).count("\n") + 1, suffix.count("\n")
    return found[:before] == wanted[:before] and (not after or found[-after:] == wanted[-after:])


def is_markdown_hole(prefix: str, middle: str, suffix: str) -> bool:
    """A hole with whole fences, or inside one, whose last line is not blank: blank lines keep blocks apart."""
    inside = block_kinds(prefix + "\n\nx\n")[-2] == "fence"
    if not middle.rpartition("\n")[2].strip() or (inside and re.search("```|~~~", middle)):
        return False
    return same_blocks(prefix, "x", suffix, MARKDOWN)


def holes(document: str, is_whole: Callable[[str, str, str], bool]) -> Iterator[tuple[str, str, str]]:
    """(prefix, middle, suffix) for all runs of lines, from every kind of place an editor's cursor may stand."""
    starts = [0, *(match.end() for match in re.finditer("\n", document))][:-1]
    ends = [match.start() for match in re.finditer("\n", document)]
    for first, start in enumerate(starts):
        line = document[start : ends[first]]
        indent = len(line) - len(line.lstrip())
        words = [match.end() for match in re.finditer(r"(?<=\S)\s", line)]
        for end in ends[first : first + LONGEST_HOLE]:
            for at in {start, start + indent, *(start + word for word in words[:2]), max(0, start - 1)}:
                prefix, middle, suffix = document[:at], document[at:end], document[end:]
                if middle.strip() and is_whole(prefix, middle, suffix):
                    yield prefix, middle, suffix


def broken(
    document: str,
    is_whole: Callable[[str, str, str], bool],
    parses: Callable[[str, str, str], bool],
) -> tuple[int, list[tuple[str, str]]]:
    """How many holes there are, and those that a cut breaks, as (middle, what was kept)."""
    count, failures = 0, []
    for prefix, middle, suffix in holes(document, is_whole):
        for text in (middle, middle + suffix):
            count += 1
            result = kept(choose_stop(prefix, suffix), prefix, suffix, text, step=len(text))
            if result.strip() and not parses(prefix, result, suffix):
                failures.append((middle, result))
    return count, failures


def balanced(text: str) -> bool:
    """For JSON: as many brackets opened as closed, none closed before it is opened."""
    depth = 0
    for token in re.findall(r'"(?:\\.|[^"\\])*"|[\[\]{}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


def test_u05_json_still_parses_after_every_cut() -> None:
    assert is_json(JSON)
    count, failures = broken(
        JSON,
        lambda prefix, middle, suffix: balanced(middle) and re.sub(r"\\\\.", "", prefix).count('"') % 2 == 0,
        lambda prefix, text, suffix: is_json(prefix + text + suffix),
    )
    assert count > 100
    assert failures == []


@pytest.mark.skipif(SHELL_PROGRAM is None, reason="there is no shell to parse with")
def test_u05_shell_still_parses_after_every_cut() -> None:
    assert is_shell(SHELL)
    count, failures = broken(
        SHELL,
        lambda prefix, middle, suffix: is_shell(prefix + ":" + suffix) and is_shell_part(middle),
        lambda prefix, text, suffix: is_shell(prefix + text + suffix),
    )
    assert count > 100
    assert failures == []


def test_u05_markdown_blocks_stay_what_they_are_after_every_cut() -> None:
    count, failures = broken(
        MARKDOWN,
        is_markdown_hole,
        lambda prefix, text, suffix: same_blocks(prefix, text, suffix, MARKDOWN),
    )
    assert count > 100
    assert failures == []


def test_python_still_parses_after_every_cut() -> None:
    assert is_python(PYTHON)
    count, failures = broken(
        PYTHON,
        lambda prefix, middle, suffix: is_python(prefix + "pass" + suffix),
        lambda prefix, text, suffix: is_python(prefix + text + suffix),
    )
    assert count > 100
    assert failures == []


@pytest.mark.parametrize("document", [JSON, SHELL, MARKDOWN, PYTHON])
def test_u05_a_document_written_into_an_empty_file_is_cut_between_its_parts_only(document: str) -> None:
    whole = {JSON: is_json, SHELL: is_shell, PYTHON: is_python}.get(document)
    text = kept("block", "", "", document)
    assert text
    if whole is not None:
        assert whole(text)
    if document is JSON:
        assert text == JSON.rstrip()


@pytest.mark.parametrize(
    ("text", "family"),
    [(JSON, "json"), (SHELL, "shell"), (MARKDOWN, "other"), (PYTHON, "other"), ("int a;\nint b;\n", "brace")],
)
def test_families_are_told_apart_by_their_text(text: str, family: str) -> None:
    assert guess_family(text) == family
