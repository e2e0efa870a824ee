"""Edits from a repository's git history: how the lines of files became others, oldest first."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LONGEST = 40
"""Lines of an edit that someone types; a longer one comes from somewhere else, as a whole."""

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Edit:
    """Lines ``removed`` of a file, the first of them line ``at`` from 0, become ``added``."""

    path: str
    at: int
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def typed(self) -> bool:
        """Whether someone could have typed it."""
        return bool(self.added) and len(self.added) + len(self.removed) <= LONGEST


@dataclass(frozen=True)
class History:
    """files: path -> text before the first edit."""

    files: dict[str, str]
    edits: list[Edit]


class NoHistory(Exception):  # noqa: N818
    """The repository's history doesn't have what is asked for. str() says what is missing."""


def read_history(repository: Path, *, files: int, typed: int, suffix: str = ".py") -> History:
    """The last edits with ``typed`` typed ones among them, of the ``files`` files that they touch most.

    Raises NoHistory.
    """
    commits = git(repository, "rev-list", "--no-merges", "--first-parent", "HEAD").split()
    found: list[list[Edit]] = []
    for place, commit in enumerate(commits[:-1]):
        found.append(
            _edits(git(repository, "show", "--format=", "-U0", "--no-renames", "--diff-filter=M", commit), suffix)
        )
        if place % 5 and place < len(commits) - 2:
            continue
        start = commits[place + 1]
        there = set(git(repository, "ls-tree", "-r", "--name-only", start).splitlines())
        edits = [edit for part in reversed(found) for edit in part if edit.path in there]
        most = Counter(edit.path for edit in edits if edit.typed).most_common(files)
        paths = {path for path, _ in most}
        if len(paths) == files and sum(count for _, count in most) >= typed:
            texts = {path: git(repository, "show", f"{start}:{path}") for path in sorted(paths)}
            return History(texts, _first(typed, [edit for edit in edits if edit.path in paths]))
    raise NoHistory(f"the git history of {repository} has no {typed} edits in {files} files; is it a shallow clone?")


def _first(typed: int, edits: Sequence[Edit]) -> list[Edit]:
    kept: list[Edit] = []
    for edit in edits:
        if typed == 0:
            break
        kept.append(edit)
        typed -= edit.typed
    return kept


def _edits(diff: str, suffix: str) -> list[Edit]:
    """The hunks of a diff without context lines."""
    edits: list[Edit] = []
    path, at = "", 0
    removed: list[str] = []
    added: list[str] = []

    def end() -> None:
        if path.endswith(suffix) and (removed or added):
            edits.append(Edit(path, at, tuple(removed), tuple(added)))
        removed.clear()
        added.clear()

    header = False
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            end()
            header = True
        elif header and line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif match := HUNK.match(line):
            end()
            header = False
            # A hunk without new lines stands after the line that it names.
            at = int(match[3]) - (match[4] != "0")
        elif not header and line.startswith("-"):
            removed.append(line[1:])
        elif not header and line.startswith("+"):
            added.append(line[1:])
    end()
    return edits


def git(repository: Path, *words: str) -> str:
    """What a git command prints. Raises NoHistory."""
    try:
        answer = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(
            f"git {words[0]} failed in {repository}: the benchmark needs a clone with its history"
        ) from error
    return answer.stdout.decode("utf-8", "replace")
