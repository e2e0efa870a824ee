"""Regions of files that a repository's history has edited: the old text, which somebody would have selected, and the
new one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.replay.history import HUNK, NoHistory, git

CONTEXT = 10
"""Unchanged lines above and below a change; changes so near to each other are one region."""
SHORTEST, LONGEST = 20, 200
"""Lines of the old text and of the new one."""
OF_A_COMMIT = 2
"""Regions at most: a commit that changes everything alike would count for all others."""
RULE = (
    f"the newest changes of Python files, at most {OF_A_COMMIT} a commit, with {CONTEXT} lines around, "
    f"where the old and the new text have {SHORTEST} to {LONGEST} lines"
)


@dataclass(frozen=True)
class Region:
    """Lines ``old`` of a file became ``new``; ``above``: the file's lines before them."""

    path: str
    above: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    added: int
    """Lines of ``new`` that the diff calls added."""


def read_regions(repository: Path, count: int) -> list[Region]:
    """The first ``count`` regions by RULE. Raises NoHistory when there are fewer."""
    found: list[Region] = []
    for commit in git(repository, "rev-list", "--no-merges", "--first-parent", "HEAD").split()[:-1]:
        found += _of_commit(repository, commit)
        if len(found) >= count:
            return found[:count]
    raise NoHistory(f"the git history of {repository} has {len(found)} regions and not {count}; is it a shallow clone?")


def _of_commit(repository: Path, commit: str) -> list[Region]:
    words = ("show", "--format=", f"-U{CONTEXT}", "--no-renames", "--diff-filter=M", commit, "--", "*.py")
    regions: list[Region] = []
    for path, first, lines in hunks(git(repository, *words)):
        old = tuple(line[1:] for line in lines if line[0] in " -")
        new = tuple(line[1:] for line in lines if line[0] in " +")
        sizes = len(old), len(new)
        if min(sizes) >= SHORTEST and max(sizes) <= LONGEST and len(regions) < OF_A_COMMIT:
            above = git(repository, "show", f"{commit}^:{path}").split("\n")[: first - 1]
            added = sum(line[0] == "+" for line in lines)
            regions.append(Region(path, tuple(above), old, new, added))
    return regions


def hunks(diff: str) -> Iterator[tuple[str, int, list[str]]]:
    """-> path, the first old line's number from 1, and the lines with their marks, for each hunk of a diff."""
    path, first, lines = "", 0, list[str]()
    for line in diff.split("\n"):
        begins = line.startswith("diff --git ") or HUNK.match(line)
        if begins and lines:
            yield path, first, lines
            lines = []
        if line.startswith("+++ b/") and not first:
            path = line.removeprefix("+++ b/")
        if line.startswith("diff --git "):
            first = 0
        elif match := HUNK.match(line):
            first = int(match[1])
        elif first and line[:1] in (" ", "-", "+"):
            lines.append(line)
    if lines:
        yield path, first, lines
