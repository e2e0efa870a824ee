"""Prompts of edits, and how the new text is read out of answers."""

from __future__ import annotations

import pytest

from prompts.edit import Around, answered, edit_prompt, question

AROUND = Around("src/a.py", "python", ("import os",), ("    x = 1", "    y = 2"), ("print(x)",))


def test_a_chat_model_gets_the_file_in_three_parts_and_the_instruction_last() -> None:
    prompt = edit_prompt(AROUND, "rename x to width", "chat")
    system, user = prompt.segments
    assert (system.role, user.role) == ("system", "user")
    assert "between two lines of ```" in system.text
    places = [
        user.text.index(part) for part in ("src/a.py", "import os", "    x = 1\n    y = 2", "print(x)", "rename x")
    ]
    assert places == sorted(places)
    assert prompt.prediction == "```python\n    x = 1\n    y = 2\n```"


def test_a_fence_has_more_backticks_than_stand_anywhere_in_the_text() -> None:
    around = Around("a.md", "markdown", ("````",), ("```py", "x", "```"), ())
    prompt = edit_prompt(around, "use `` instead", "chat")
    assert prompt.fence == "`````"
    assert answered("`````markdown\n```py\ny\n```\n`````\n", prompt) == (["```py", "y", "```"], True)


def test_a_model_that_fills_in_gets_the_old_lines_before_and_the_instruction_as_a_comment() -> None:
    prompt = edit_prompt(AROUND, "rename x\nto width", "fim")
    file, suffix, prefix = prompt.segments
    assert (file.role, file.text, file.path) == ("file", "    x = 1\n    y = 2\n", "src/a.py")
    assert (suffix.role, suffix.text) == ("suffix", "print(x)\n")
    assert (prefix.role, prefix.text) == ("prefix", "import os\n    # rename x\n    # to width\n")
    assert prompt.prediction == file.text
    assert answered("    width = 1\n", prompt) == (["    width = 1", ""], False)


@pytest.mark.parametrize(
    ("language", "comment"),
    [("rust", "// do it"), ("bash", "# do it"), ("markdown", "<!-- do it -->"), ("", "# do it")],
)
def test_the_comment_is_the_languages(language: str, comment: str) -> None:
    prompt = edit_prompt(Around(None, language, (), ("x",), ()), "do it", "fim")
    assert prompt.segments[-1].text == f"{comment}\n"


@pytest.mark.parametrize(
    ("text", "lines", "ended"),
    [
        ("", None, False),
        ("Sure, here it is:\n", None, False),
        ("```", None, False),
        ("```python", None, False),
        ("```python\n", [""], False),
        ("Here:\n\n```python\nx = 1\ny", ["x = 1", "y"], False),
        ("```\nx = 1\n```\nI changed x.\n```\nnot this\n```", ["x = 1"], True),
        ("```\n```", [], True),
        ("```markdown\n# A\n```sh\nx\n```\nmore\n```\n", ["# A", "```sh", "x", "```", "more"], True),
        ("````markdown\n```sh\nx\n```\nmore\n````\n", ["```sh", "x", "```", "more"], True),
        ("``` text\nnew\n```\nI changed it.\n```\nother\n```", ["new"], True),
        ("<think>\n```\na\n```\n</think>\n```\nb\n```", ["b"], True),
        ("```\r\nb = 2\r\n```\r\n", ["b = 2"], True),
        ("no `code` here", None, False),
        ("```python x = 1\n", None, False),
    ],
)
def test_new_lines_stand_between_fences(text: str, lines: list[str] | None, ended: bool) -> None:
    assert answered(text, edit_prompt(AROUND, "x", "chat")) == (lines, ended)


def test_a_question_has_no_old_text_to_copy() -> None:
    prompt = question(AROUND, "Explain the lines.")
    assert prompt.prediction == prompt.fence == ""
    assert prompt.segments[-1].text.endswith("Explain the lines.\n")
