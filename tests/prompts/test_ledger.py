"""The ledger of a workspace: what is in the prompt, in an order that rests, and where a prompt differs from before."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompts.budget import Budget
from prompts.ledger import DEFINITION, Ledger
from prompts.reuse import Reuse, compare
from prompts.segments import Segment
from prompts.sources import Sources
from prompts.stable import EDITED, OPEN_FILE
from prompts.text import Cursor, SourceFile, SourceText, byte_length
from prompts.window import PrefixWindow


def body(name, lines):
    return [f"{name}_{n} = {n}" for n in range(lines)]


START = Cursor(0, 0)


@dataclass
class Workspace:
    """Open files, the one used last at the end; the last is at the cursor. The budget is in bytes."""

    files: dict[str, list[str]]
    bytes: int = 20_000
    cursor: Cursor = START
    ledger: Ledger = field(default_factory=Ledger)
    windows: dict[str, PrefixWindow] = field(default_factory=dict)
    texts: dict[str, SourceText] = field(default_factory=dict)
    reuse: Reuse = field(default_factory=Reuse)

    @property
    def current(self):
        return next(reversed(self.files))

    def text(self, path):
        now = SourceText(tuple(self.files[path]))
        if self.texts.get(path) != now:
            self.texts[path] = now
        return self.texts[path]

    def go(self, path, line=0, column=0):
        self.files[path] = self.files.pop(path)
        self.cursor = self.text(path).clamp(Cursor(line, column))

    def type(self, text):
        lines, at = self.files[self.current], self.cursor
        new = (lines[at.line][: at.column] + text + lines[at.line][at.column :]).split("\n")
        self.windows.setdefault(self.current, PrefixWindow()).lines_replaced(at.line, 1, len(new))
        lines[at.line : at.line + 1] = new
        typed = text.split("\n")
        column = len(typed[-1]) + (at.column if len(typed) == 1 else 0)
        self.cursor = Cursor(at.line + len(typed) - 1, column)

    def prompt(self, **more):
        *others, current = (SourceFile(path, self.text(path)) for path in self.files)
        window = self.windows.setdefault(self.current, PrefixWindow())
        prompt = self.ledger.prompt(current, self.cursor, others, Budget(self.bytes, 1.0), window=window, **more)
        self.reuse = prompt.reuse
        return prompt.segments


def parts(segments, *sources):
    return [(segment.path, segment.text) for segment in segments if segment.source in sources]


def paths(segments, *sources):
    return [path for path, _ in parts(segments, *sources)]


def workspace(*names, lines=20, **more):
    return Workspace({f"{name}.py": [*body(name, lines), ""] for name in names}, **more)


STEP = st.one_of(
    st.tuples(st.just("go"), st.integers(0, 9), st.integers(0, 60), st.integers(0, 12)),
    st.tuples(st.just("type"), st.sampled_from(["x", "word", "\n", "a = f(b)\n    ", "漢"])),
    st.tuples(st.just("edit"), st.integers(0, 9), st.integers(0, 60), st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("open"), st.integers(0, 200)),
    st.tuples(st.just("close"), st.integers(0, 9)),
    st.tuples(st.just("rebuild")),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, min_size=1, max_size=40), size=st.sampled_from([700, 3000, 9000, 60_000]))
def test_whatever_happens_the_order_rests_the_budget_holds_and_nothing_is_there_twice(steps, size):
    space = workspace("a", "b", "c", "d", "e", lines=30, bytes=size)
    before = space.prompt()
    for number, (kind, *what) in enumerate(steps):
        names = list(space.files)
        path, suffix = None, parts(before, "current")[0]
        if kind == "go":
            space.go(names[what[0] % len(names)], *what[1:])
        elif kind == "type":
            space.type(*what)
        elif kind == "edit" and len(names) > 1:
            path = names[what[0] % (len(names) - 1)]
            at = what[1] % len(space.files[path])
            space.files[path][at : at + what[2]] = body(f"new{number}", what[3])
            space.files[path] = space.files[path] or [""]
        elif kind == "open":
            current = space.current
            space.files[f"n{number}.py"] = [*body(f"n{number}", what[0]), ""]
            space.go(current, space.cursor.line, space.cursor.column)
        elif kind == "close" and len(names) > 1:
            del space.files[names[what[0] % (len(names) - 1)]]
        elif kind == "rebuild":
            space.ledger.rebuild()
        due = space.ledger.rebuild_due
        segments = space.prompt()
        check_prompt(space, segments)
        check_order(before, segments)
        if kind == "type" and parts(segments, "current")[0] == suffix and space.reuse.segment is not None:
            assert segments[space.reuse.segment].role == "prefix" or space.windows[space.current].first_line > 0
        if kind == "edit" and path and space.reuse.segment is not None:
            changed = [i for i, s in enumerate(before) if s.path == path] + [
                len(before) - len(parts(before, "current"))
            ]
            excerpts = [i for i, s in enumerate(before) if s.source == EDITED]
            assert space.reuse.segment >= min(changed + excerpts)
        if kind == "rebuild":
            assert due or not space.ledger.rebuild_due
        before = segments


def check_prompt(space, segments):
    assert sum(byte_length(segment.text) for segment in segments) <= space.bytes
    places = [(segment.source, segment.path, segment.text) for segment in segments if segment.role == "file"]
    assert len(places) == len(set(places))
    copies, edited = dict(parts(segments, OPEN_FILE)), dict(parts(segments, EDITED))
    assert len(copies) == len(paths(segments, OPEN_FILE))
    assert space.current not in {*copies, *edited}
    assert {*copies, *edited} <= set(space.files)
    for path, text in copies.items():
        whole = "\n".join(space.files[path])
        assert path in edited or whole == text or (text and text.endswith("\n") and whole.startswith(text))
        if path in edited:
            assert all(not line or line in space.files[path] for line in edited[path].splitlines())


def check_order(before, segments):
    """Copies that are as they were stand in the order in which they stood."""
    old, new = parts(before, OPEN_FILE), parts(segments, OPEN_FILE)
    same = [part for part in new if part in old]
    assert same == [part for part in old if part in same]


def test_typing_changes_nothing_before_the_cursor():
    space = workspace("a", "b", "c")
    space.go("c.py", 7, 3)
    first = space.prompt()
    for piece in ("x", " = ", "call", "(", ")", "\n", "y"):
        space.type(piece)
        segments = space.prompt()
        assert segments[:3] == first[:3]
        assert segments[space.reuse.segment].role == "prefix"


def test_a_file_that_the_cursor_leaves_comes_last_and_nothing_before_the_entered_one_moves():
    space = workspace("a", "b", "c", "d", "e")
    assert paths(space.prompt(), OPEN_FILE) == ["a.py", "b.py", "c.py", "d.py"]
    space.go("c.py")
    assert paths(space.prompt(), OPEN_FILE) == ["a.py", "b.py", "d.py", "e.py"]
    assert (space.reuse.segment, space.reuse.label) == (2, "open file d.py")
    space.go("e.py")
    assert paths(space.prompt(), OPEN_FILE) == ["a.py", "b.py", "d.py", "c.py"]


def test_an_edited_file_keeps_its_place_and_text_and_the_change_follows_behind_all_copies():
    space = workspace("a", "b", "c")
    before = space.prompt()
    space.files["a.py"][5] = "changed = 1"
    segments = space.prompt()
    assert parts(segments, OPEN_FILE) == parts(before, OPEN_FILE)
    assert parts(segments, EDITED) == [("a.py", "a_3 = 3\na_4 = 4\nchanged = 1\na_6 = 6\na_7 = 7\n")]
    assert [segment.source for segment in segments[:4]] == [OPEN_FILE, OPEN_FILE, EDITED, "current"]
    assert space.reuse.label == f"{EDITED} a.py"


def test_a_rebuild_is_due_when_stale_copies_have_cost_as_much_and_then_they_are_replaced():
    space = workspace("a", "b", "c", lines=12)
    space.prompt()
    space.files["a.py"][5] = "changed = 1"
    asked = 0
    while not space.ledger.rebuild_due:
        space.go("c.py", asked % 7)
        space.files["a.py"][5] += "1"
        segments = space.prompt()
        asked += 1
        assert asked < 40
    assert asked > 2
    assert paths(segments, EDITED) == ["a.py"]
    space.ledger.rebuild()
    segments = space.prompt()
    assert not space.ledger.rebuild_due
    assert paths(segments, OPEN_FILE) == ["b.py", "a.py"]
    assert paths(segments, EDITED) == []
    assert "changed = 1" in dict(parts(segments, OPEN_FILE))["a.py"]


def test_a_change_that_is_taken_back_leaves_no_trace():
    space = workspace("a", "b", "c")
    before = space.prompt()
    line = space.files["a.py"][5]
    space.files["a.py"][5] = "changed = 1"
    assert space.prompt() != before
    space.files["a.py"][5] = line
    assert space.prompt() == before


def test_a_change_too_large_to_follow_behind_moves_the_file_to_the_end_as_it_is_now():
    space = workspace("a", "b", "c", lines=30, bytes=4000)
    space.prompt()
    space.files["a.py"] = [*body("other", 30), ""]
    segments = space.prompt()
    assert paths(segments, OPEN_FILE) == ["b.py", "a.py"]
    assert paths(segments, EDITED) == []
    assert "other_29" in parts(segments, OPEN_FILE)[1][1]


def test_a_copy_is_never_left_stale_without_what_corrects_it():
    space = workspace("a", "b", "c", "d", "e", lines=60, bytes=8000)
    space.prompt()
    for path in ("a.py", "b.py", "c.py"):
        space.files[path][10:10] = body("new", 40)
        segments = space.prompt()
        check_prompt(space, segments)
    assert paths(segments, OPEN_FILE) == ["a.py", "d.py", "b.py", "c.py"]
    assert paths(segments, EDITED) == ["a.py"]


def test_a_change_below_the_place_where_a_file_is_cut_moves_nothing():
    space = workspace("a", "b", "c", lines=30, bytes=3000)
    space.files["a.py"] += body("more", 300)
    before = space.prompt()
    assert paths(before, OPEN_FILE) == ["a.py", "b.py"]
    space.files["a.py"][-3] = "changed = 1"
    assert space.prompt() == before


def test_a_file_without_room_waits_for_a_rebuild_and_what_was_edited_in_it_is_there_at_once():
    space = workspace("a", "b", "c", lines=100, bytes=3000)
    space.go("c.py", 30)
    space.prompt()
    space.type("edited_by_hand = 1\n")
    space.prompt()
    space.go("a.py", 3)
    segments = space.prompt()
    assert "c.py" not in paths(segments, OPEN_FILE)
    assert "edited_by_hand" in dict(parts(segments, EDITED))["c.py"]
    assert space.ledger.rebuild_due
    space.ledger.rebuild()
    segments = space.prompt()
    assert paths(segments, OPEN_FILE)[-1] == "c.py"
    assert not space.ledger.rebuild_due


def test_a_file_that_grows_under_the_cursor_pushes_nothing_out_until_a_rebuild():
    space = workspace("a", "b", "c", lines=40, bytes=3000)
    space.files["c.py"] = [""]
    copies = parts(space.prompt(), OPEN_FILE)
    for number in range(150):
        space.type(f"line_{number} = {number}\n")
        assert parts(space.prompt(), OPEN_FILE) == copies
    assert space.ledger.rebuild_due
    space.ledger.rebuild()
    assert parts(space.prompt(), OPEN_FILE) != copies
    assert not space.ledger.rebuild_due


@pytest.mark.parametrize("number", range(3))
def test_u25_a_file_that_may_not_be_shown_any_more_leaves_the_prompt_at_once(number):
    space = workspace("a", "b", "c", "d")
    space.prompt()
    space.files["abc"[number] + ".py"][3] = "changed = 1"
    space.prompt()
    del space.files["abc"[number] + ".py"]
    assert "abc"[number] + "_1" not in "".join(segment.text for segment in space.prompt())


DEFINES = ["import os", "", "def parse_article(line: str,", "    separator: str) -> int:", "    return 1"]


def defining(**more):
    """c.py is at the cursor; a.py, which doesn't fit, defines parse_article."""
    files = {"a.py": [*DEFINES, *body("a", 300)], "b.py": body("b", 30), "c.py": ["", "", "", "x = "]}
    return Workspace(files, cursor=Cursor(3, 4), bytes=3000, **more)


def test_u19_a_definition_that_the_prompt_lacks_is_there_with_its_whole_header():
    space = defining()
    space.files["a.py"] = [*body("a", 300), *DEFINES]
    space.files["c.py"][0] = "from a import parse_article"
    assert parts(space.prompt(), DEFINITION) == [
        ("a.py", "def parse_article(line: str,\n    separator: str) -> int:\n")
    ]
    assert parts(space.prompt(sources=Sources(definitions=False)), DEFINITION) == []


def test_a_definition_that_stands_in_the_prompt_is_not_shown_again():
    space = defining(ledger=Ledger())
    space.files["c.py"][0] = "from a import parse_article"
    text = "".join(segment.text for segment in space.prompt())
    assert text.count("def parse_article") == 1
    assert "separator" in text


def test_definitions_that_stay_when_the_cursor_goes_elsewhere_stand_before_the_new_ones():
    space = defining()
    names = ("alpha_one", "beta_two", "shared_three")
    functions = [line for name in names for line in (f"def {name}(a):", "    return a", "")]
    space.files["a.py"] = [*body("a", 300), "", *functions]
    space.files["c.py"] = ["from a import shared_three", *body("c", 90)]
    for line, name in ((50, "alpha_one"), (75, "beta_two")):
        space.files["c.py"][line] = f"x = {name}(1)"
    shown = []
    for line in (50, 75, 50, 75):
        space.go("c.py", line + 1)
        segments = space.prompt()
        shown.append([text.split("(")[0].removeprefix("def ") for _, text in parts(segments, DEFINITION)])
    assert shown == [
        ["alpha_one", "shared_three"],
        ["shared_three", "beta_two"],
        ["shared_three", "alpha_one"],
        ["shared_three", "beta_two"],
    ]


def test_a_name_just_typed_waits_for_idle_time_so_that_typing_only_appends():
    space = defining()
    space.files["a.py"] = [*body("a", 300), *DEFINES]
    space.prompt()
    for piece in ("parse", "_article", "("):
        space.type(piece)
        space.prompt()
        assert space.reuse.segment is None or space.reuse.label == "current"
    assert space.ledger.rebuild_due
    space.ledger.rebuild()
    assert paths(space.prompt(), DEFINITION) == ["a.py"]
    assert not space.ledger.rebuild_due


def test_u20_every_source_can_be_switched_off_by_itself():
    space = workspace("a", "b", "c")
    none = Sources(open_files=False, definitions=False, path=False, repository=False)
    assert {segment.source for segment in space.prompt(repository="shop", sources=none)} == {"current"}
    assert {segment.path for segment in space.prompt(repository="shop", sources=none)} == {None}
    with_files = space.prompt(repository="shop", sources=Sources(repository=False))
    assert [segment.source for segment in with_files[:3]] == [OPEN_FILE, OPEN_FILE, "current"]


def test_the_same_calls_give_the_same_prompts():
    def run():
        space = workspace("a", "b", "c", "d", bytes=2000)
        prompts = []
        for number in range(12):
            space.go("abcd"[number * 7 % 4] + ".py", number)
            space.type("name_of_it = 1\n")
            prompts.append(space.prompt())
        return prompts

    assert run() == run()


def segments_of(*texts, role="file"):
    return [Segment(role, text, source="open file", path=f"{n}.py") for n, text in enumerate(texts)]


def test_the_first_difference_is_told_with_its_label_and_what_stands_before_it():
    old = [*segments_of("aaaa", "bbbb"), Segment("prefix", "xx\n", "current"), Segment("prefix", "y", "current")]
    assert compare(old, old, 2.0) == Reuse(6)
    assert compare(old, [*segments_of("aaaa", "bbxb"), *old[2:]], 2.0) == Reuse(3, 1, "open file 1.py")
    typed = [*old[:2], Segment("prefix", "xx\nyz", "current")]
    assert compare(old, typed, 2.0) == Reuse(6, 2, "current")
    assert compare(
        typed, [*old[:2], Segment("prefix", "xx\ny", "current"), Segment("prefix", "z", "current")], 2.0
    ) == Reuse(6)
    assert compare([], old, 2.0) == Reuse(0, 0, "open file 0.py")
