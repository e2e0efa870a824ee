"""Fences of backticks around a text that may hold some itself."""

from __future__ import annotations

import re
from collections.abc import Iterable


def fence_for(lines: Iterable[str]) -> str:
    """More backticks than stand together anywhere in the lines, three at least."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    return "`" * max(3, longest + 1)
