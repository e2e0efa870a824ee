"""Lays out a fill-in-the-middle prompt in tokens: which markers stand where, and where one segment ends.

Every segment is tokenised by itself, so that its borders are token borders and what didn't change keeps its ids. For
the same ids as one long text would give, cut a text where a line begins that isn't blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from prompts.segments import Segment

Order = Literal["spm", "psm"]
"""spm: the suffix first, so that typing only appends. psm: the prefix first, the only order Qwen documents."""


class FimTokenizer(Protocol):
    """What a layout needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def special(self, name: str) -> int | None: ...


class NoFimTokens(ValueError):  # noqa: N818
    """The model's vocabulary has no fill-in-the-middle markers, so it must be asked in another way."""


class BadSegments(ValueError):  # noqa: N818
    """The segments don't make a prompt of the asked route. `str()` says why."""


@dataclass(frozen=True)
class FimSpecials:
    """Ids of the markers around the parts of a text with a hole."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: FimTokenizer) -> FimSpecials:
        """Raises NoFimTokens."""
        return cls(*(marker(tokenizer, f"<|fim_{part}|>") for part in ("prefix", "suffix", "middle")))


@dataclass(frozen=True)
class PromptTokens:
    """A prompt in tokens.

    checkpoints: token counts, increasing, at the ends of the segments that asked for one. starts and lengths: of each
    segment, in the order they were given, its markers counted with it; together they cover all ids.
    """

    ids: list[int]
    checkpoints: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


def marker(tokenizer: FimTokenizer, name: str) -> int:
    """The id of a special token. Raises NoFimTokens."""
    token = tokenizer.special(name)
    if token is None:
        raise NoFimTokens(
            f"the model's vocabulary has no {name}: it can't fill in the middle; take one that can (`embedded` does)"
        )
    return token


def arrange_fim(prefix: Sequence[int], suffix: Sequence[int], order: Order, specials: FimSpecials) -> list[int]:
    """The ids of a text with a hole, up to where the middle begins; training appends the middle and an end token."""
    before = [specials.prefix, *prefix]
    after = [specials.suffix, *suffix]
    first, second = (after, before) if order == "spm" else (before, after)
    return [*first, *second, specials.middle]


def repo_ids(name: str, tokenizer: FimTokenizer) -> list[int]:
    """The line that names the repository. Raises NoFimTokens."""
    return [marker(tokenizer, "<|repo_name|>"), *tokenizer.encode(_one_line(name))]


def header_ids(path: str, tokenizer: FimTokenizer) -> list[int]:
    """The line before a file's content. Raises NoFimTokens."""
    return [marker(tokenizer, "<|file_sep|>"), *tokenizer.encode(_one_line(path))]


def fim_tokens(segments: Sequence[Segment], tokenizer: FimTokenizer, order: Order = "spm") -> PromptTokens:
    """The prompt that asks for what stands at the cursor.

    The repository's name, then each file as path and content, then the current file: its path if one of its segments
    has one, and the suffix and prefix segments in `order`. Segments of one kind keep their order, whatever stands
    between them. Raises BadSegments, or NoFimTokens when the vocabulary has no marker that is needed.
    """
    kinds: dict[str, list[int]] = {"repo": [], "file": [], "suffix": [], "prefix": []}
    for index, segment in enumerate(segments):
        if segment.role not in kinds:
            raise BadSegments(
                f"segments[{index}]: the role {segment.role!r} has no place in a fill-in-the-middle prompt"
            )
        kinds[segment.role].append(index)
    current = kinds["suffix"] + kinds["prefix"]
    if not current:
        raise BadSegments("a fill-in-the-middle prompt needs a prefix or a suffix segment")
    if len(kinds["repo"]) > 1:
        raise BadSegments("there can be one repo segment only")

    parts = [tokenizer.encode(segment.text) for segment in segments]
    for index in kinds["repo"]:
        parts[index] = repo_ids(segments[index].text, tokenizer)
    for index in kinds["file"]:
        path = segments[index].path
        if not path:
            raise BadSegments(f"segments[{index}]: a file segment needs a path")
        ends_a_line = not segments[index].text or segments[index].text.endswith("\n")
        parts[index] = header_ids(path, tokenizer) + parts[index] + ([] if ends_a_line else tokenizer.encode("\n"))

    path = next((segments[index].path for index in current if segments[index].path), None)
    header = header_ids(path, tokenizer) if path else []
    hole = arrange_fim(
        [i for index in kinds["prefix"] for i in parts[index]],
        [i for index in kinds["suffix"] for i in parts[index]],
        order,
        FimSpecials.of(tokenizer),
    )
    ids = [i for index in kinds["repo"] + kinds["file"] for i in parts[index]] + header + hole

    # Segment ends in the order of the layout. A kind's marker belongs to its first segment; without one, to the other
    # kind's nearest segment. The middle marker belongs to the last segment, but comes after its checkpoint.
    first_kind, second_kind = ("suffix", "prefix") if order == "spm" else ("prefix", "suffix")
    layout = kinds["repo"] + kinds["file"] + kinds[first_kind] + kinds[second_kind]
    ends = [0] * len(segments)
    at = 0
    for index in kinds["repo"] + kinds["file"]:
        ends[index] = at = at + len(parts[index])
    at += len(header)
    for kind in (first_kind, second_kind):
        at += 1
        for index in kinds[kind]:
            ends[index] = at = at + len(parts[index])
    return _placed(segments, layout, ids, ends)


def plain_tokens(segments: Sequence[Segment], tokenizer: FimTokenizer) -> PromptTokens:
    """The texts one after the other, without any marker. Raises BadSegments for roles that need one."""
    ids: list[int] = []
    ends: list[int] = []
    for index, segment in enumerate(segments):
        if segment.role not in ("text", "prefix"):
            raise BadSegments(
                f"segments[{index}]: the role {segment.role!r} has no place in a plain prompt; use 'text'"
            )
        ids += tokenizer.encode(segment.text)
        ends.append(len(ids))
    return _placed(segments, list(range(len(segments))), ids, ends)


def _placed(segments: Sequence[Segment], layout: Sequence[int], ids: list[int], ends: list[int]) -> PromptTokens:
    """layout: segment indices in prompt order. ends: of each segment's own text, by segment index."""
    checkpoints = {ends[index] for index in layout if segments[index].checkpoint} - {0}
    starts, lengths = [0] * len(segments), [0] * len(segments)
    at = 0
    for place, index in enumerate(layout):
        end = len(ids) if place == len(layout) - 1 else ends[index]
        starts[index], lengths[index] = at, end - at
        at = end
    return PromptTokens(ids, tuple(sorted(checkpoints)), tuple(starts), tuple(lengths))


def _one_line(name: str) -> str:
    """A name as a line of its own; a line break inside it would end the line early."""
    return name.replace("\r", " ").replace("\n", " ") + "\n"
