"""The places an evaluation asks for are what the figures' definitions say."""

from __future__ import annotations

import random

from models.files import File
from models.spans import Span, cursors, repeats, rest_of_line_spans

RNG = random.Random(0)
LINES = [
    "x = 1",
    "    call(argument, another)  ",
    "# a comment",
    "    # indented",
    "",
    "   ",
    "\treturn value",
    "é = '漢字 ü'",
]
FILES = [
    File("p", f"p/{n}.py", "\n".join(RNG.choice(LINES) for _ in range(length)) + "\n" * (n % 2))
    for n, length in enumerate([10, 21, 40, 200, 600])
]
TEXTS = {file.path: file.text for file in FILES}


def line_of(span: Span) -> str:
    return span.prefix.rpartition("\n")[2] + span.middle


def test_a_span_is_the_rest_of_a_line_and_its_file_whole() -> None:
    for span in rest_of_line_spans(FILES, 400, 1):
        assert span.prefix + span.middle + span.suffix == TEXTS[span.path]
        assert "\n" not in span.middle
        assert span.suffix[:1] in ("", "\n")


def test_a_spans_line_is_neither_blank_nor_a_comment_and_has_twenty_lines_before() -> None:
    for span in rest_of_line_spans(FILES, 400, 1):
        assert line_of(span).strip()
        assert not line_of(span).lstrip().startswith("#")
        assert span.prefix.count("\n") >= 20
    assert min(span.prefix.count("\n") for span in rest_of_line_spans(FILES, 400, 1)) == 20


def test_half_begin_at_the_first_character_and_half_at_a_column_with_five_left() -> None:
    spans = rest_of_line_spans(FILES, 400, 1)
    for span in spans[::2]:
        assert not span.prefix.rpartition("\n")[2].strip()
        assert not span.middle[0].isspace()
    for span in spans[1::2]:
        assert len(span.middle.rstrip()) >= 5
    # "    call(argument, another)" has 19 columns with five characters left; each comes up.
    columns = {
        len(line_of(s)) - len(s.middle) for s in rest_of_line_spans(FILES, 2000, 2)[1::2] if "call" in line_of(s)
    }
    assert columns == set(range(4, 23))


def test_the_seed_decides_and_longer_files_come_up_more_often() -> None:
    spans = rest_of_line_spans(FILES, 400, 1)
    assert spans == rest_of_line_spans(FILES, 400, 1)
    assert spans != rest_of_line_spans(FILES, 400, 2)
    share = sum(span.path == "p/4.py" for span in spans) / 400
    assert 0.65 < share < 0.85  # 580 of 781 lines
    assert not any(span.path == "p/0.py" for span in spans)


def test_a_cursor_stands_at_a_line_start_before_the_lines_own_text() -> None:
    found = cursors(FILES, 100, 3)
    for span in found:
        assert span.prefix.endswith("\n")
        assert span.prefix + span.middle + span.suffix == TEXTS[span.path]
        assert span.middle.strip()
    assert len({(span.path, len(span.prefix)) for span in found}) > 50


def test_a_run_of_eight_that_stands_three_times_is_a_repeat() -> None:
    run = list(range(8))
    assert repeats([*run, 90, *run, 91, *run])
    assert not repeats([*run, 90, *run, 91, *run[:7]])
    assert repeats([5] * 10)
    assert not repeats([5] * 9)
    assert not repeats(list(range(64)))
