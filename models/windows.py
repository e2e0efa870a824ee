"""From files to training windows: plain text, fill-in-the-middle in both orders, and packs of several files.

Every window holds ``length`` + 1 tokens. ``prompts/fim.py`` lays out a document as it lays out a prompt; the middle
and the end token follow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from models.files import File
from prompts.fim import FimSpecials, FimTokenizer, Order, arrange_fim, header_ids, marker, repo_ids

END = "<|endoftext|>"
"""Stands after every document, so also after a middle."""


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

    0.53 rest of the line (half from the first non-blank character, half from a random column), 0.24 whole lines
    from an indent on, 0.19 any span of characters, 0.04 the end of a line where nothing is missing. None when the
    text has no fitting place.
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
        if rng.random() < 0.04:
            return Cut(text[:line_end], "", text[line_end:])
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


def sections(text: str, rng: random.Random, low: int = 400, high: int = 12_000) -> Iterator[str]:
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

    def __init__(self, tokenizer: FimTokenizer, length: int, rng: random.Random) -> None:
        """Raises NoFimTokens for a vocabulary without the markers."""
        self.tokenizer, self.encode, self.length, self.rng = tokenizer, tokenizer.encode, length, rng
        self.specials, self.end = FimSpecials.of(tokenizer), marker(tokenizer, END)
        self.plain: list[int] = []
        self.whole: list[list[int]] = []

    def header(self, path: str) -> list[int]:
        return header_ids(path, self.tokenizer)

    def hole(self, text: str) -> list[int]:
        """One text with a hole: prefix-suffix-middle or suffix-prefix-middle in equal shares."""
        cut = cut_text(text, self.rng)
        if cut is None:
            return [*self.encode(text), self.end]
        order: Order = "psm" if self.rng.random() < 0.5 else "spm"
        asked = arrange_fim(self.encode(cut.prefix), self.encode(cut.suffix), order, self.specials)
        return [*asked, *self.encode(cut.middle), self.end]

    def add_plain(self, file: File) -> None:
        if self.rng.random() < 0.4:
            self.plain += self.header(file.path)
        self.plain += [*self.encode(file.text), self.end]

    def add_holes(self, file: File) -> None:
        for section in sections(file.text, self.rng):
            head = self.header(file.path) if self.rng.random() < 0.6 else []
            self.keep(head + self.hole(section))

    def add_pack(self, files: list[File]) -> None:
        """Several files of one package in one window, the last one with a hole; without it when it has no room."""
        rng = self.rng
        tokens = repo_ids(files[0].package, self.tokenizer) if rng.random() < 0.5 else []
        room = self.length - 100
        for i, file in enumerate(files):
            text = rng.choice(list(sections(file.text, rng, 1500, 7000)))
            last = i == len(files) - 1
            body = self.header(file.path) + (self.hole(text) if last else self.encode(text))
            if len(tokens) + len(body) > room:
                break
            tokens += body
        if tokens and tokens[-1] != self.end:
            tokens.append(self.end)
        self.keep(tokens)

    def keep(self, tokens: list[int]) -> None:
        """A document longer than a window (a page of digits, say) is left out: half a hole teaches nothing."""
        if 0 < len(tokens) <= self.length:
            self.whole.append(tokens)

    def add(self, files: list[File]) -> None:
        """One group: two packs from most groups of more than two files, then every file plain or with holes."""
        if len(files) > 2 and self.rng.random() < 0.8:
            for _ in range(2):
                self.add_pack(self.rng.sample(files, min(len(files), self.rng.randint(2, 5))))
        for file in files:
            if self.rng.random() < 0.35:
                self.add_plain(file)
            else:
                self.add_holes(file)

    def windows(self) -> Iterator[list[int]]:
        """All complete windows that what was added so far allows; what is left waits for more."""
        size = self.length + 1
        self.rng.shuffle(self.whole)
        while self.whole and len(self.plain) > size:
            if self.rng.random() < 0.15:
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
