"""The context ledger of a workspace: which text is in a completion's prompt, in which order, and why it rests there.

Stable first, volatile last: the repository's name, copies of the open files in the order they came, excerpts of what
changed in them since, definitions of names at the cursor, then the current file's text after the cursor and the text
before it. So typing only appends, and nothing in front of it is computed again. A file that the cursor enters leaves
its place, because its text stands at the cursor; when the cursor leaves it, it comes last of the copies.
Sizes are UTF-8 bytes, translated from a budget in tokens by a ratio that ``prompts.budget`` measures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prompts.budget import Budget, NoPromptBudget
from prompts.reuse import Reuse, compare
from prompts.segments import Segment
from prompts.sources import Sources
from prompts.stable import EDITED, StableFiles
from prompts.symbols import SymbolIndex, names_in
from prompts.text import Cursor, SourceFile, SourceText, byte_length, sendable, text_bytes
from prompts.window import PrefixWindow, current_segments

STEPS = 8
"""The budget is dealt out in eighths, so that a growing file moves the others' share rarely."""
CURRENT_STEPS = 5
"""Eighths the current file may take from the other files when there is not enough for all."""
EXCERPT_STEPS = 1
"""Eighths for excerpts: of edited files, then of definitions."""
SLACK_STEPS = 1
"""Eighths a layout leaves free for files to come, when not all fit."""
NEAR_LINES = 8
"""Definitions are looked up for the names in so many lines above the cursor ..."""
IMPORT_LINES = 40
"""... and in so many at the beginning of the file."""
DEFINITION = "definition"
_UNFINISHED_NAME = re.compile(r"\w+$")


@dataclass(frozen=True)
class Prompt:
    """reuse: in comparison with the workspace's prompt before."""

    segments: list[Segment]
    reuse: Reuse


class Ledger:
    """The ledger of one workspace. It knows text only: the same calls give the same prompts."""

    def __init__(self) -> None:
        self._stable = StableFiles()
        self._index = SymbolIndex()
        self._names: dict[str, None] = {}
        self._before: list[Segment] = []
        self._total = 0
        self._current: str | None = None
        self._others: Mapping[str, SourceFile] = {}
        self._room = 0
        self._squeezed = False
        self._missing = False
        """A name at the cursor has a definition that the prompt lacks."""
        self._renew = False
        self._paid = 0
        """Bytes of corrections to stale copies that had to be computed since the last rebuild."""

    def prompt(
        self,
        current: SourceFile,
        cursor: Cursor,
        others: Sequence[SourceFile] = (),
        budget: Budget | None = None,
        *,
        repository: str | None = None,
        window: PrefixWindow | None = None,
        sources: Sources | None = None,
    ) -> Prompt:
        """The fill-in-the-middle prompt for ``cursor`` in ``current``.

        others: all other open files that may be shown, least recently used first; a file that isn't among them leaves
        the prompt at once. budget: None takes everything. repository: its name. window: the current document's, from
        earlier requests; it is updated. Without others, the suffix and prefix segments together are the current
        document and nothing else. Raises NoPromptBudget when there is not a single token.
        """
        sources = sources or Sources()
        by_path = {file.path: file for file in others if file.path is not None and file.path != current.path}
        files = by_path if sources.open_files else {}
        step = self._step(budget, current, by_path)
        excerpts = EXCERPT_STEPS * step if by_path else 0
        used = self._follow(current, files, step, excerpts)
        size = STEPS * step - excerpts - _round_up(self._stable.size, step)
        shown = current if sources.path else replace(current, path=None)
        at_cursor = current_segments(shown, cursor, size, window if window is not None else PrefixWindow())
        fixed = self._stable.segments()
        if fixed and repository and sources.repository:
            fixed.insert(0, Segment("repo", sendable(repository), source="repository"))
        if sources.definitions:
            whole = self._stable.whole
            changed = self._index.update([file for path, file in by_path.items() if path not in whole])
            before = [s for s in self._before if s.role != "prefix" and s.source != DEFINITION]
            rests = not changed and before == [*fixed, at_cursor[0]]
            fixed += self._definitions(current.text, at_cursor, fixed, excerpts - used, rests=rests)
        segments = fixed + at_cursor
        reuse = compare(self._before, segments, budget.bytes_per_token if budget else Budget(1).bytes_per_token)
        self._pay(reuse, segments)
        self._before = segments
        return Prompt(segments, reuse)

    @property
    def rebuild_due(self) -> bool:
        """Whether a rebuild in idle time would pay: there is no room for a new file or for the current one, correcting
        stale copies has cost as much by now, or a definition is missing."""
        return self._missing or self._files_due

    def rebuild(self) -> None:
        """Make what is due: the next prompt has the files that belong in it, as they were last, without corrections,
        and the definitions that are missing."""
        self._renew = True
        if self._files_due:
            self._lay_out()

    @property
    def _files_due(self) -> bool:
        _, behind = self._stable.stale()
        return self._stable.waiting or self._squeezed or 0 < behind <= self._paid

    def _lay_out(self) -> None:
        self._stable.lay_out(self._others, self._room, SLACK_STEPS * self._total // STEPS)
        self._paid = 0
        self._squeezed = False

    def _step(self, budget: Budget | None, current: SourceFile, others: Mapping[str, SourceFile]) -> int:
        if budget is None:
            return sum(text_bytes(file.text) + byte_length(file.path or "") + 4 for file in (current, *others.values()))
        if budget.tokens <= 0:
            raise NoPromptBudget(budget.tokens)
        return max(budget.bytes // STEPS, 1)

    def _follow(self, current: SourceFile, others: Mapping[str, SourceFile], step: int, excerpts: int) -> int:
        """Bring the copies up to date. Returns the bytes of their excerpts."""
        total = STEPS * step
        entered = current.path != self._current or total != self._total
        self._current, self._total, self._others = current.path, total, others
        needed = text_bytes(current.text, limit=total)
        self._room = total - excerpts - min(_round_up(needed + step // 4, step), CURRENT_STEPS * step)
        if entered and not self._stable.size:
            self._lay_out()
        used = self._stable.follow(others, current, self._room, excerpts)
        # While one file is typed in, its window shrinks rather than that the copies in front of it move.
        least = min(needed, CURRENT_STEPS * step)
        squeezed = _round_up(self._stable.size, step) > total - excerpts - least
        if entered and squeezed:
            self._lay_out()
            used = self._stable.follow(others, current, self._room, excerpts)
        self._squeezed = _round_up(self._stable.size, step) > total - excerpts - least
        return used

    def _definitions(
        self, current: SourceText, at_cursor: Sequence[Segment], fixed: Sequence[Segment], room: int, *, rests: bool
    ) -> list[Segment]:
        """Excerpts for the names near the cursor, and for those that the file imports, that the prompt doesn't define.

        rests: what stands around them is as it was, so they stay as they are, and new names wait for a rebuild.
        """
        before = "".join(segment.text for segment in at_cursor if segment.role == "prefix")
        near = before.split("\n")[-NEAR_LINES - 1 :]
        # A name that is still being typed may be the beginning of another one.
        names = names_in("\n".join(reversed([*near[:-1], _UNFINISHED_NAME.sub("", near[-1])])))
        if rests and not self._renew:
            self._missing |= any(name not in self._names and self._index.find(name) for name in names)
            return [segment for segment in self._before if segment.source == DEFINITION]
        self._names = dict.fromkeys([*names, *names_in("\n".join(current.lines[:IMPORT_LINES]))])
        self._missing = self._renew = False
        window = before + at_cursor[0].text
        found: list[Segment] = []
        for name in self._names:
            for path, text in self._index.find(name):
                size = byte_length(text) + byte_length(path) + 4
                known = any(text in other.text for other in (*fixed, *found)) or text in window
                if size <= room and not known:
                    found.append(Segment("file", sendable(text), source=DEFINITION, path=path, checkpoint=True))
                    room -= size
        # Those that were there stand first, in the order they had: less of what is kept ends with the first new one.
        stay = [segment for segment in self._before if segment in found]
        return [*stay, *(segment for segment in found if segment not in stay)]

    def _pay(self, reuse: Reuse, segments: Sequence[Segment]) -> None:
        corrections, _ = self._stable.stale()
        first = next((i for i, segment in enumerate(segments) if segment.source == EDITED), None)
        if first is not None and reuse.segment is not None and reuse.segment <= first:
            self._paid += corrections


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
