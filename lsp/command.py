"""``draftline complete FILE:LINE:COL``: one completion for people and scripts, by the language server's own core."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from lsp.completion import BLANK, Outcome, Workplace, complete_at, is_blank
from lsp.settings import Settings
from prompts.budget import NoPromptBudget
from prompts.ignore import IgnoreRules, repository_of
from prompts.text import Cursor, SourceText
from server.client import EMBEDDED, EngineClient, EngineError, EngineUnavailable
from server.request import Counters

PATIENCE = Settings(timeout_ms=60_000)
"""A person at a shell or a script waits for the whole item, even from a cold engine on a busy machine."""


LARGEST_BYTES = 100_000_000
"""Of a file: it is held in memory several times."""


class BadPlace(Exception):  # noqa: N818
    """FILE:LINE:COL names no place in a text. str() is one line that says why."""


@dataclass(frozen=True)
class Place:
    """cursor: from 0, column in characters."""

    path: Path
    text: str
    cursor: Cursor


def read_place(argument: str) -> Place:
    """The text and the cursor that ``FILE:LINE:COL`` stands for; FILE may hold colons. Raises BadPlace."""
    file, line, column = _split(argument)
    try:
        # The folder as it really is, so that ".." leads where the system says; the name stays the user's.
        path = Path(file).parent.resolve() / Path(file).name
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise BadPlace(f"{file} is a directory; name a file")
        if not stat.S_ISREG(mode):  # a pipe or a device may have no end, or nobody who writes
            raise BadPlace(f"{file} is a pipe or a device; name a file")
        with path.open("rb") as stream:
            data = stream.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise BadPlace(f"there is no file {file}") from None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadPlace(f"{file} can't be read: {reason}") from error
    if len(data) > LARGEST_BYTES:
        raise BadPlace(f"{file} has more than {LARGEST_BYTES // 10**6} MB, which is no text to complete")
    try:
        if b"\0" in data:
            raise ValueError
        text = data.decode("utf-8-sig")
    except ValueError:
        raise BadPlace(f"{file} is not a text file in UTF-8") from None
    lines = SourceText.from_text(text).lines
    if line > len(lines):
        raise BadPlace(f"{file} has {_count(len(lines), 'line')}, and line {line} is asked for")
    length = len(lines[line - 1])
    if column > length + 1:
        raise BadPlace(
            f"line {line} of {file} has {_count(length, 'character')}, so the last column is {length + 1}, "
            f"and column {column} is asked for"
        )
    return Place(path, text, Cursor(line - 1, column - 1))


def _split(argument: str) -> tuple[str, int, int]:
    parts = argument.rsplit(":", 2)
    if len(parts) != 3 or not parts[0]:
        raise BadPlace(f"expected FILE:LINE:COL, such as main.py:12:5, got {argument!r}")
    numbers = []
    for name, digits in zip(("LINE", "COL"), parts[1:], strict=True):
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) > 0):
            raise BadPlace(f"expected FILE:LINE:COL with {name} a whole number from 1, got {digits!r} in {argument!r}")
        numbers.append(int(digits))
    return parts[0], numbers[0], numbers[1]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _tell(line: str) -> None:
    print(f"draftline: {line}", file=sys.stderr, flush=True)


async def _complete(place: Place, model: str | None) -> tuple[Outcome, str | None]:
    """The outcome, and the model that was asked."""
    root = repository_of(place.path.parent)
    if IgnoreRules().excluded(place.path, root or place.path.parent):
        return Outcome("excluded", detail="an ignored file or one that looks like a secret"), None
    if is_blank(SourceText.from_text(place.text)):
        return BLANK, None
    shown = place.path.relative_to(root).as_posix() if root else place.path.name
    try:
        async with await EngineClient.connect(model=model, tell=_tell) as client:
            workplace = Workplace(repository=root.name if root else None)
            outcome = await complete_at(client, place.text, shown, place.cursor, workplace=workplace, settings=PATIENCE)
            return outcome, client.model_id
    except (EngineUnavailable, EngineError, NoPromptBudget) as error:
        return Outcome("error", detail=str(error)), None


def run(argument: str, *, as_json: bool, model: str | None) -> int:
    """Print one completion. Returns the exit code, 1 after an error. Raises BadPlace."""
    place = read_place(argument)
    outcome, answered = asyncio.run(_complete(place, model))
    if as_json:
        report = {"text": outcome.text, "reason": outcome.reason, **outcome.figures()}
        if answered is not None:
            report["model"] = answered
        if outcome.detail:
            report["detail"] = outcome.detail
        print(json.dumps(report))
    elif outcome.reason == "shown":
        print(outcome.text)
    if outcome.reason == "error":
        print(f"draftline: {outcome.detail}", file=sys.stderr)
        return 1
    if not as_json:
        by = "" if answered in (None, EMBEDDED) else f", by the model {answered}"
        print(_figures(outcome) + by, file=sys.stderr)
    return 0


def _figures(outcome: Outcome) -> str:
    c = outcome.counters
    if c == Counters():
        return f"{outcome.reason}: {outcome.detail}"  # the engine was not asked
    told = f"{outcome.reason} ({outcome.detail})" if outcome.detail else outcome.reason
    return (
        f"{told}: {c.ttft_ms:.0f} ms to the first token, {c.prefilled} tokens prefilled, {c.reused} reused, "
        f"{c.drafted} drafted, {c.accepted} accepted, {c.tokens_per_second:.0f} tokens/s"
    )
