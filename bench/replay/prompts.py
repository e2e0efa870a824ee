"""Two ways to lay out the prompts of a session: the ledger's, and a plain one."""

from __future__ import annotations

from typing import Protocol

from bench.replay.typist import Moment
from prompts.budget import Budget
from prompts.fim import FimTokenizer, PromptTokens, fim_tokens
from prompts.ledger import Ledger
from prompts.segments import Segment
from prompts.text import SourceFile, byte_length, text_bytes


class Layout(Protocol):
    name: str

    def rests(self, moment: Moment) -> bool:
        """Whether there is a prompt to compute in idle time."""

    def segments(self, moment: Moment) -> list[Segment]: ...

    def tokens(self, segments: list[Segment], tokenizer: FimTokenizer) -> PromptTokens: ...


class LedgerLayout:
    name = "the ledger"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.ledger = Ledger()

    def rests(self, moment: Moment) -> bool:
        due = self.ledger.rebuild_due
        if due:
            self.ledger.rebuild()
        return due

    def segments(self, moment: Moment) -> list[Segment]:
        file = moment.file
        current = SourceFile(file.path, file.source)
        return self.ledger.prompt(
            current, moment.cursor, moment.others, self._budget, repository="project", window=file.window
        ).segments

    def tokens(self, segments: list[Segment], tokenizer: FimTokenizer) -> PromptTokens:
        return fim_tokens(segments, tokenizer)


class PlainLayout:
    """The other files, most recently used first, then the current file, its prefix first; a long one is cut."""

    name = "plain: other files most recent first, prefix, suffix"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def rests(self, moment: Moment) -> bool:
        return False

    def segments(self, moment: Moment) -> list[Segment]:
        lines, cursor = moment.file.source.lines, moment.cursor
        prefix = "\n".join((*lines[: cursor.line], lines[cursor.line][: cursor.column]))
        suffix = "\n".join((lines[cursor.line][cursor.column :], *lines[cursor.line + 1 :]))
        prefix, suffix = prefix[-self._budget.bytes // 2 :], suffix[: self._budget.bytes // 4]
        room = self._budget.bytes - byte_length(prefix) - byte_length(suffix)
        segments: list[Segment] = []
        for other in reversed(moment.others):
            size = text_bytes(other.text)
            if size <= room:
                segments.append(Segment("file", str(other.text), source="open file", path=other.path, checkpoint=True))
                room -= size
        path = moment.file.path
        segments.append(Segment("prefix", prefix, source="current", path=path, checkpoint=True))
        segments.append(Segment("suffix", suffix, source="current", checkpoint=True))
        return segments

    def tokens(self, segments: list[Segment], tokenizer: FimTokenizer) -> PromptTokens:
        return fim_tokens(segments, tokenizer, "psm")
