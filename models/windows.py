"""From files to training windows: plain text, fill-in-the-middle in both orders, and packs of several files.

Every window holds ``length`` + 1 tokens. Documents are laid out as ``prompts/fim.py`` lays out a prompt, followed by
the middle and the end token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Markers:
    """Ids of the special tokens a window is built with."""

    end: int
    fim_prefix: int
    fim_middle: int
    fim_suffix: int
    repo_name: int
    file_sep: int


@dataclass(frozen=True)
class File:
    package: str
    path: str
    text: str


@dataclass(frozen=True)
class Cut:
    """A text in three parts: what stands before the hole, in it, and after it."""

    prefix: str
    middle: str
    suffix: str


def line_starts(text: str) -> list[int]:
    starts = [0]
    while (at := text.find("\n", starts[-1])) != -1 and at + 1 < len(text):
        starts.append(at + 1)
    return starts


def cut_text(text: str, rng: random.Random) -> Cut | None:
    """A hole as a cursor makes it: mostly from a place in a line to the end of that or a later line.

    0.55 rest of the line (half from the first non-blank character, half from a random column), 0.25 whole lines
    from an indent on, 0.2 any span of characters. None when the text has no fitting place.
    """
    starts = line_starts(text)
    for _ in range(8):
        row = rng.randrange(len(starts))
        begin = starts[row]
        line_end = text.find("\n", begin)
        line_end = len(text) if line_end == -1 else line_end
        line = text[begin:line_end]
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        kind = rng.random()
        if kind < 0.8:
            first = begin + indent
            whole_lines = kind >= 0.55
            at = first if whole_lines or rng.random() < 0.5 else rng.randrange(first, line_end)
            more = rng.choice((1, 1, 2, 2, 3, 4, 6, 8)) if whole_lines else rng.choice((0,) * 8 + (1, 2))
            last = min(row + more, len(starts) - 1)
            stop = text.find("\n", starts[last])
            stop = len(text) if stop == -1 else stop
        else:
            at = rng.randrange(begin, line_end)
            stop = min(len(text), at + int(2 ** rng.uniform(2, 8.5)))
        if not text[at:stop].strip():
            continue
        suffix = text[stop:]
        fate = rng.random()
        if fate < 0.08:
            suffix = ""
        elif fate < 0.4:
            # An editor's suffix is cut at a line border when it does not fit.
            lines = suffix.split("\n")
            suffix = "\n".join(lines[: rng.randint(1, max(1, min(len(lines), 40)))])
        return Cut(text[:at], text[at:stop], suffix)
    return None


def sections(text: str, rng: random.Random, low: int = 400, high: int = 6000) -> Iterator[str]:
    """The whole text in consecutive pieces of ``low`` to ``high`` characters, cut at line borders."""
    begin = 0
    while begin < len(text):
        size = int(low * (high / low) ** rng.random())
        end = text.find("\n", begin + size)
        end = len(text) if end == -1 or len(text) - end < low else end + 1
        yield text[begin:end]
        begin = end


class WindowBuilder:
    """Turns groups of files of one package into token windows.

    Plain text may be cut at a window's end and goes on in the next; documents with a hole never are.
    """

    def __init__(self, encode: Encode, markers: Markers, length: int, rng: random.Random) -> None:
        self.encode, self.markers, self.length, self.rng = encode, markers, length, rng
        self.plain: list[int] = []
        self.whole: list[list[int]] = []

    def header(self, path: str) -> list[int]:
        return [self.markers.file_sep, *self.encode(path + "\n")]

    def hole(self, text: str) -> list[int]:
        """One text with a hole: prefix-suffix-middle or suffix-prefix-middle in equal shares."""
        m, cut = self.markers, cut_text(text, self.rng)
        if cut is None:
            return [*self.encode(text), m.end]
        prefix = [m.fim_prefix, *self.encode(cut.prefix)]
        suffix = [m.fim_suffix, *self.encode(cut.suffix)]
        first, second = (prefix, suffix) if self.rng.random() < 0.5 else (suffix, prefix)
        return [*first, *second, m.fim_middle, *self.encode(cut.middle), m.end]

    def add_plain(self, file: File) -> None:
        if self.rng.random() < 0.4:
            self.plain += self.header(file.path)
        self.plain += [*self.encode(file.text), self.markers.end]

    def add_holes(self, file: File) -> None:
        for section in sections(file.text, self.rng):
            head = self.header(file.path) if self.rng.random() < 0.6 else []
            self.keep(head + self.hole(section))

    def add_pack(self, files: list[File]) -> None:
        """Several files of one package in one window, the last one with a hole."""
        rng, m = self.rng, self.markers
        tokens = [m.repo_name, *self.encode(files[0].package + "\n")] if rng.random() < 0.5 else []
        room = self.length - 100
        for i, file in enumerate(files):
            pieces = list(sections(file.text, rng, 1500, 7000))
            last = i == len(files) - 1
            text = rng.choice(pieces)
            body = self.header(file.path) + (self.hole(text) if last else self.encode(text))
            if len(tokens) + len(body) > room:
                break
            tokens += body
        if tokens and tokens[-1] != m.end:
            tokens.append(m.end)
        self.keep(tokens)

    def keep(self, tokens: list[int]) -> None:
        if len(tokens) > self.length:
            self.plain += tokens
        elif tokens:
            self.whole.append(tokens)

    def add(self, files: list[File]) -> None:
        """One group: a pack from half of the larger groups, then every file plain or with holes."""
        if len(files) > 2 and self.rng.random() < 0.8:
            for _ in range(2):
                self.add_pack(self.rng.sample(files, min(len(files), self.rng.randint(2, 5))))
        for file in files:
            if self.rng.random() < 0.5:
                self.add_plain(file)
            else:
                self.add_holes(file)

    def windows(self) -> Iterator[list[int]]:
        """All complete windows that what was added so far allows; what is left waits for more."""
        size = self.length + 1
        self.rng.shuffle(self.whole)
        while self.whole and len(self.plain) > size:
            if self.rng.random() < 0.3:
                yield self.plain[:size]
                self.plain = self.plain[size:]
                continue
            window: list[int] = []
            for tokens in list(self.whole):
                if len(window) + len(tokens) <= size:
                    window += tokens
                    self.whole.remove(tokens)
                if size - len(window) < 200:
                    break
            fill = size - len(window)
            yield window + self.plain[:fill]
            self.plain = self.plain[fill:]
        while len(self.plain) > size:
            yield self.plain[:size]
            self.plain = self.plain[size:]


def groups(files: list[File], rng: random.Random, characters: int = 60_000) -> list[list[File]]:
    """All files once, in groups of one package and about ``characters``, in random order."""
    by_package: dict[str, list[File]] = {}
    for file in files:
        by_package.setdefault(file.package, []).append(file)
    found: list[list[File]] = []
    for members in by_package.values():
        # Neighbours in the tree belong together; where a group begins is random.
        members.sort(key=lambda f: f.path)
        shift = rng.randrange(len(members))
        group: list[File] = []
        for file in members[shift:] + members[:shift]:
            group.append(file)
            if sum(len(f.text) for f in group) >= characters:
                found.append(group)
                group = []
        if group:
            found.append(group)
    rng.shuffle(found)
    return found
