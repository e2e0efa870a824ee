"""Training windows: their length, their holes, and that a document is laid out as a prompt is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from models.files import File
from models.tokenizer_file import load_tokenizer
from models.windows import END, Cut, WindowBuilder, cut_text, groups, line_starts, sections
from prompts.fim import fim_tokens
from prompts.ledger import Ledger
from prompts.segments import Segment
from prompts.text import Cursor, SourceFile, SourceText
from server.model.tokenizer import Tokenizer

SPECIALS = (END, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
TEXT = "".join(
    f"def name_{n}(a, b):\n    '''Doc {n}.'''\n\n    c = a + {n}\n    d = b\n    return c * d\n\n" for n in range(60)
)


class Letters:
    """One id a character: what was laid out can be read back."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def special(self, name: str) -> int | None:
        return 0x110000 + SPECIALS.index(name) if name in SPECIALS else None

    def read(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) if i < 0x110000 else SPECIALS[i - 0x110000] for i in ids)


LETTERS = Letters()


def builder(length: int = 4096, seed: int = 0) -> WindowBuilder:
    return WindowBuilder(LETTERS, length, random.Random(seed))


def parts_of(document: str) -> tuple[str, str, str, str]:
    """Order, prefix, suffix, middle of a document with a hole (its end token still there)."""
    asked, middle = document.split("<|fim_middle|>")
    if asked.startswith("<|fim_prefix|>"):
        prefix, suffix = asked.removeprefix("<|fim_prefix|>").split("<|fim_suffix|>")
        return "psm", prefix, suffix, middle
    suffix, prefix = asked.removeprefix("<|fim_suffix|>").split("<|fim_prefix|>")
    return "spm", prefix, suffix, middle


def test_line_starts_are_where_lines_begin() -> None:
    assert line_starts("a\n\nbc\n") == [0, 2, 3]
    assert line_starts("a\nb") == [0, 2]
    assert line_starts("") == [0]


def test_a_cut_text_is_whole_again_but_for_a_suffix_that_may_end_early() -> None:
    rng = random.Random(0)
    shortened = empty = 0
    for _ in range(500):
        cut = cut_text(TEXT, rng)
        assert cut is not None, "eight blank lines in a row are unlikely"
        joined = cut.prefix + cut.middle + cut.suffix
        assert TEXT.startswith(joined)
        nothing_missing = cut.middle == ""
        assert cut.middle.strip() or (nothing_missing and joined == TEXT and cut.suffix[:1] in ("", "\n"))
        empty += nothing_missing
        shortened += joined != TEXT
        # A suffix that an editor had to shorten ends with a whole line.
        assert not cut.suffix or TEXT[len(joined) : len(joined) + 1] in ("", "\n")
    assert 0.25 < shortened / 500 < 0.55
    assert 0.01 < empty / 500 < 0.08


def test_most_holes_reach_from_a_place_in_a_line_to_a_lines_end() -> None:
    rng = random.Random(1)
    cuts = [cut for _ in range(600) if (cut := cut_text(TEXT, rng))]
    ends = [TEXT[len(cut.prefix + cut.middle) :][:1] in ("", "\n") for cut in cuts]
    starts = [not cut.prefix.rpartition("\n")[2].strip() for cut in cuts]
    several = ["\n" in cut.middle for cut in cuts]
    assert 0.75 < sum(ends) / len(cuts) < 0.9
    assert 0.45 < sum(starts) / len(cuts) < 0.75
    assert 0.25 < sum(several) / len(cuts) < 0.6


def test_a_text_of_blank_lines_has_no_hole() -> None:
    assert cut_text("\n  \n\n", random.Random(0)) is None
    assert LETTERS.read(builder().hole("\n  \n")) == "\n  \n" + END


def test_a_hole_is_its_parts_between_markers_then_the_middle_and_the_end() -> None:
    made = builder()
    for _ in range(100):
        document = LETTERS.read(made.hole(TEXT))
        assert document.endswith(END)
        _, prefix, suffix, middle = parts_of(document.removesuffix(END))
        assert TEXT.startswith(prefix + middle + suffix)
        assert middle.strip() or suffix[:1] in ("", "\n")


def test_both_orders_occur_in_equal_shares() -> None:
    made = builder()
    orders = [parts_of(LETTERS.read(made.hole(TEXT)).removesuffix(END))[0] for _ in range(1000)]
    assert abs(orders.count("spm") - 500) < 80  # five standard deviations


@pytest.mark.parametrize("order", ["spm", "psm"])
@pytest.mark.parametrize("path", ["pkg/mod.py", None])
def test_a_trained_document_begins_with_the_ids_of_the_prompt_for_the_same_text(
    tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, path: str | None
) -> None:
    tokenizer = load_tokenizer(tokenizer_path)
    rng = random.Random(3)
    cuts = [cut for _ in range(60) if (cut := cut_text(TEXT + "x = '<|fim_middle|> <think>'\n", rng))]
    for cut in cuts:
        monkeypatch.setattr("models.windows.cut_text", lambda text, rng, cut=cut: cut)
        trained = document(tokenizer, order, path)
        parts = [Segment("suffix", cut.suffix, "current", path), Segment("prefix", cut.prefix, "current", path)]
        prompt = fim_tokens(parts, tokenizer, order).ids  # type: ignore[arg-type]
        assert trained == [*prompt, *tokenizer.encode(cut.middle), tokenizer.special(END)]


def document(tokenizer: Tokenizer, order: str, path: str | None) -> list[int]:
    made = WindowBuilder(tokenizer, 4096, random.Random(0))
    monkey = {"psm": 0.0, "spm": 0.9}[order]
    made.rng.random = lambda: monkey  # type: ignore[method-assign]
    return (made.header(path) if path else []) + made.hole("any")


def test_a_trained_document_begins_with_the_ids_of_what_an_editor_sends(
    tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor's prefix comes in several segments; together they must be the ids of the prefix as one text."""
    tokenizer = load_tokenizer(tokenizer_path)
    source = SourceFile("pkg/mod.py", SourceText.from_text(TEXT))
    rng = random.Random(5)
    lines = TEXT.split("\n")
    for _ in range(80):
        row = rng.randrange(len(lines))
        column = rng.randint(0, len(lines[row]))
        prefix = "\n".join([*lines[:row], lines[row][:column]])
        cut = Cut(prefix, "pass", TEXT[len(prefix) :])
        monkeypatch.setattr("models.windows.cut_text", lambda text, rng, cut=cut: cut)
        trained = document(tokenizer, "spm", "pkg/mod.py")
        prompt = fim_tokens(Ledger().prompt(source, Cursor(row, column)).segments, tokenizer).ids
        assert trained[: len(prompt)] == prompt


def test_a_pack_is_laid_out_as_a_prompt_with_other_open_files(tokenizer_path: Path, text_files: list[File]) -> None:
    tokenizer = load_tokenizer(tokenizer_path)
    made = WindowBuilder(tokenizer, 4096, random.Random(0))
    for _ in range(30):
        made.add_pack(made.rng.sample(text_files[:6], 3))
    with_repo = with_hole = 0
    for pack in made.whole:
        assert len(pack) <= 4096
        *asked, middle, end = split_at(pack, tokenizer)
        if middle[0] == "<|file_sep|>":  # the file with the hole had no room
            continue
        with_hole += 1
        assert (middle[0], end[0]) == ("<|fim_middle|>", END)
        segments = [as_segment(name, tokenizer.decode(ids)) for name, ids in asked]
        segments = [*segments[:-3], *with_path(segments[-3], segments[-2:])]
        order = "spm" if segments[-2].role == "suffix" else "psm"
        prompt = fim_tokens(segments, tokenizer, order).ids  # type: ignore[arg-type]
        assert pack[: len(prompt)] == prompt
        with_repo += segments[0].role == "repo"
    assert with_hole > 20
    assert with_hole / 5 < with_repo < with_hole * 0.9


def split_at(ids: list[int], tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Each marker with the ids that follow it."""
    names = {tokenizer.special(name): name for name in SPECIALS}
    found: list[tuple[str, list[int]]] = []
    for i in ids:
        if i in names:
            found.append((names[i], []))
        else:
            found[-1][1].append(i)
    return found


def as_segment(marker: str, text: str) -> Segment:
    if marker == "<|file_sep|>":
        path, _, content = text.partition("\n")
        return Segment("file", content, "test", path)
    if marker == "<|repo_name|>":
        return Segment("repo", text.removesuffix("\n"), "test")
    return Segment("suffix" if marker == "<|fim_suffix|>" else "prefix", text, "test")


def with_path(header: Segment, parts: list[Segment]) -> list[Segment]:
    """The current file's header is a file marker without content."""
    assert (header.role, header.text) == ("file", "")
    return [Segment(part.role, part.text, part.source, header.path) for part in parts]


def test_sections_cover_the_text_and_end_with_lines() -> None:
    for seed in range(20):
        pieces = list(sections(TEXT * 3, random.Random(seed)))
        assert "".join(pieces) == TEXT * 3
        assert all(piece.endswith("\n") and len(piece) >= 400 for piece in pieces)
        assert len(pieces) > 1


def test_text_without_a_line_end_is_one_section() -> None:
    assert list(sections("x" * 9000, random.Random(0))) == ["x" * 9000]


def test_every_window_has_one_token_more_than_its_length(text_files: list[File]) -> None:
    made = builder(length=2000)
    windows = []
    for group in groups(text_files, random.Random(0)):
        made.add(group)
        windows += list(made.windows())
    assert len(windows) > 30
    assert {len(window) for window in windows} == {2001}


def test_what_was_added_comes_out_once_and_in_order_where_it_is_plain() -> None:
    made = builder(length=1000)
    files = [File("p", f"p/{n}.py", f"# {n}\n" + TEXT) for n in range(10)]
    for file in files:
        made.add_plain(file)
    text = LETTERS.read([i for window in made.windows() for i in window] + made.plain)
    for file in files:
        assert text.count(file.text + END) == 1
    headers = sum(f"<|file_sep|>p/{n}.py\n# {n}\n" in text for n in range(10))
    assert 0 < headers < 10


def test_documents_with_a_hole_are_never_cut(text_files: list[File]) -> None:
    made = builder(length=8000)
    for file in text_files:
        made.add_holes(file)
        made.add_plain(file)
    waiting = {LETTERS.read(tokens) for tokens in made.whole}
    windows = [LETTERS.read(window) for window in made.windows()]
    left = {LETTERS.read(tokens) for tokens in made.whole}
    for document in waiting - left:
        assert any(document in window for window in windows)
    assert len(waiting - left) > 50


def test_a_document_longer_than_a_window_is_left_out() -> None:
    made = builder(length=300)
    made.add_holes(File("p", "p.py", "x" * 2000 + "\n"))
    assert (made.whole, made.plain) == ([], [])


def test_groups_hold_every_file_once_and_one_package_each(text_files: list[File]) -> None:
    found = groups(text_files, random.Random(0), characters=10_000)
    assert sorted(f.path for group in found for f in group) == sorted(f.path for f in text_files)
    assert all(len({f.package for f in group}) == 1 for group in found)
    assert found != groups(text_files, random.Random(1), characters=10_000)
    assert max(map(len, found)) > 1
