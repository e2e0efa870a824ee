"""Fill-in-the-middle layouts, with a tokenizer of one id a character so that a prompt can be read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts.fim import BadSegments, FimSpecials, NoFimTokens, Order, arrange_fim, fim_tokens, plain_tokens
from prompts.segments import Role, Segment

NAMES = ("fim_prefix", "fim_suffix", "fim_middle", "repo_name", "file_sep")


class Characters:
    """One id a character; markers get the ids from 2,000,000 on."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.specials = {f"<|{name}|>": 2_000_000 + i for i, name in enumerate(names)}

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def special(self, name: str) -> int | None:
        return self.specials.get(name)

    def read(self, ids: Sequence[int]) -> str:
        names = {i: name for name, i in self.specials.items()}
        return "".join(names.get(i) or chr(i) for i in ids)


TOKENIZER = Characters()


def segment(role: Role, text: str, path: str | None = None, checkpoint: bool = False) -> Segment:
    return Segment(role, text, "test", path, checkpoint)


WORKSPACE = [
    segment("repo", "shop"),
    segment("file", "a\n", "a.py", checkpoint=True),
    segment("file", "b", "b.py", checkpoint=True),
    segment("suffix", "after", "c.py", checkpoint=True),
    segment("prefix", "far\n", checkpoint=True),
    segment("prefix", "near", checkpoint=True),
]
CONTEXT = "<|repo_name|>shop\n<|file_sep|>a.py\na\n<|file_sep|>b.py\nb\n<|file_sep|>c.py\n"


def test_the_suffix_stands_before_the_prefix_so_that_typing_only_appends() -> None:
    tokens = fim_tokens(WORKSPACE, TOKENIZER)
    assert TOKENIZER.read(tokens.ids) == CONTEXT + "<|fim_suffix|>after<|fim_prefix|>far\nnear<|fim_middle|>"


def test_the_prefix_stands_first_where_the_model_asks_for_it() -> None:
    tokens = fim_tokens(WORKSPACE, TOKENIZER, "psm")
    assert TOKENIZER.read(tokens.ids) == CONTEXT + "<|fim_prefix|>far\nnear<|fim_suffix|>after<|fim_middle|>"


def test_a_file_ends_with_exactly_the_line_break_it_has_or_gets() -> None:
    files = [segment("file", text, "x") for text in ("", "a", "a\n", "a\n\n")]
    text = TOKENIZER.read(fim_tokens([*files, segment("prefix", "p")], TOKENIZER).ids)
    assert text.startswith("<|file_sep|>x\n<|file_sep|>x\na\n<|file_sep|>x\na\n<|file_sep|>x\na\n\n<|fim_suffix|>")


def test_without_a_path_the_current_file_has_no_header() -> None:
    tokens = fim_tokens([segment("prefix", "p")], TOKENIZER)
    assert TOKENIZER.read(tokens.ids) == "<|fim_suffix|><|fim_prefix|>p<|fim_middle|>"
    tokens = fim_tokens([segment("suffix", "s")], TOKENIZER, "psm")
    assert TOKENIZER.read(tokens.ids) == "<|fim_prefix|><|fim_suffix|>s<|fim_middle|>"


def test_a_line_break_in_a_name_does_not_end_its_line() -> None:
    segments = [segment("repo", "a\nb"), segment("file", "", "c\r\nd"), segment("prefix", "p", "e\nf")]
    text = TOKENIZER.read(fim_tokens(segments, TOKENIZER).ids)
    assert text.startswith("<|repo_name|>a b\n<|file_sep|>c  d\n<|file_sep|>e f\n<|fim_suffix|>")


def spans(segments: Sequence[Segment], order: Order) -> list[str]:
    tokens = fim_tokens(segments, TOKENIZER, order)
    pairs = zip(tokens.starts, tokens.lengths, strict=True)
    return [TOKENIZER.read(tokens.ids[start : start + length]) for start, length in pairs]


def test_every_segment_is_found_again_with_its_markers() -> None:
    head = ["<|repo_name|>shop\n", "<|file_sep|>a.py\na\n", "<|file_sep|>b.py\nb\n"]
    assert spans(WORKSPACE, "spm") == [
        *head,
        "<|file_sep|>c.py\n<|fim_suffix|>after",
        "<|fim_prefix|>far\n",
        "near<|fim_middle|>",
    ]
    assert spans(WORKSPACE, "psm") == [
        *head,
        "<|fim_suffix|>after<|fim_middle|>",
        "<|file_sep|>c.py\n<|fim_prefix|>far\n",
        "near",
    ]


def test_checkpoints_stand_at_the_ends_of_segments_and_before_the_middle_marker() -> None:
    tokens = fim_tokens(WORKSPACE, TOKENIZER)
    assert [TOKENIZER.read(tokens.ids[:count])[-5:] for count in tokens.checkpoints] == [
        "py\na\n",
        "py\nb\n",
        "after",
        ">far\n",
        "\nnear",
    ]
    assert len(tokens.ids) - tokens.checkpoints[-1] == 1
    suffix_last = fim_tokens(WORKSPACE, TOKENIZER, "psm")
    assert TOKENIZER.read(suffix_last.ids[suffix_last.checkpoints[-1] :]) == "<|fim_middle|>"


def test_no_checkpoint_that_nobody_asked_for_none_twice_none_at_zero() -> None:
    assert fim_tokens([segment("prefix", "p")], TOKENIZER).checkpoints == ()
    twice = [segment("prefix", "p", checkpoint=True), segment("prefix", "", checkpoint=True)]
    assert fim_tokens(twice, TOKENIZER).checkpoints == (3,)
    assert plain_tokens([segment("text", "", checkpoint=True), segment("text", "a")], TOKENIZER).checkpoints == ()


@given(
    st.lists(
        st.tuples(st.sampled_from(["file", "suffix", "prefix"]), st.text("ab\n", max_size=4), st.booleans()), max_size=6
    ),
    st.sampled_from(["spm", "psm"]),
)
def test_spans_cover_the_prompt_exactly_once_in_any_arrangement(
    parts: list[tuple[Role, str, bool]], order: Order
) -> None:
    segments = [segment(role, text, "p", flag) for role, text, flag in parts] + [segment("prefix", "x")]
    tokens = fim_tokens(segments, TOKENIZER, order)
    ranges = sorted(zip(tokens.starts, tokens.lengths, strict=True))
    covered = [i for start, length in ranges for i in range(start, start + length)]
    assert covered == list(range(len(tokens.ids)))
    assert all(length > 0 or parts[i][0] != "file" for i, length in enumerate(tokens.lengths))
    assert all(0 < count < len(tokens.ids) for count in tokens.checkpoints)
    for part, start, length in zip(segments, tokens.starts, tokens.lengths, strict=True):
        assert part.text in TOKENIZER.read(tokens.ids[start : start + length])


def test_segments_are_tokenised_one_by_one_and_markers_in_text_are_text() -> None:
    class Words(Characters):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def encode(self, text: str) -> list[int]:
            self.seen.append(text)
            return super().encode(text)

    words = Words()
    tokens = fim_tokens([segment("suffix", "<|fim_middle|>"), segment("prefix", "a"), segment("prefix", "b")], words)
    assert words.seen == ["<|fim_middle|>", "a", "b"]
    assert tokens.ids.count(words.specials["<|fim_middle|>"]) == 1


def test_training_builds_the_same_ids_from_the_same_parts() -> None:
    for order in ("spm", "psm"):
        ids = arrange_fim([1, 2], [3], order, FimSpecials.of(TOKENIZER))
        text = [segment("suffix", "\x03"), segment("prefix", "\x01\x02")]
        assert ids == fim_tokens(text, TOKENIZER, order).ids


@pytest.mark.parametrize("missing", NAMES)
def test_a_vocabulary_without_the_markers_is_one_typed_error(missing: str) -> None:
    tokenizer = Characters([name for name in NAMES if name != missing])
    with pytest.raises(NoFimTokens, match=rf"no <\|{missing}\|>: .* take one that can"):
        fim_tokens(WORKSPACE, tokenizer)


def test_markers_that_a_prompt_does_not_use_may_be_missing() -> None:
    tokenizer = Characters(NAMES[:3])
    assert fim_tokens([segment("prefix", "p")], tokenizer).ids


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([], "needs a prefix or a suffix"),
        ([segment("file", "a", "a.py")], "needs a prefix or a suffix"),
        ([segment("text", "a")], r"segments\[0\]: the role 'text'"),
        ([segment("prefix", "p"), segment("file", "a")], r"segments\[1\]: a file segment needs a path"),
        ([segment("repo", "a"), segment("repo", "b"), segment("prefix", "p")], "one repo segment"),
    ],
)
def test_segments_that_make_no_prompt_are_refused_with_the_reason(segments: list[Segment], problem: str) -> None:
    with pytest.raises(BadSegments, match=problem):
        fim_tokens(segments, TOKENIZER)


def test_the_plain_route_joins_texts_and_writes_no_marker() -> None:
    tokens = plain_tokens([segment("text", "ab", checkpoint=True), segment("prefix", "c", "x.py")], TOKENIZER)
    assert TOKENIZER.read(tokens.ids) == "abc"
    assert (tokens.checkpoints, tokens.starts, tokens.lengths) == ((2,), (0, 2), (2, 1))
    assert plain_tokens([], TOKENIZER).ids == []
    with pytest.raises(BadSegments, match="'suffix' has no place in a plain prompt"):
        plain_tokens([segment("suffix", "s")], TOKENIZER)
