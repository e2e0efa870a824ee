"""From a selection and an instruction to an edit that may be applied, or the reason why there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from lsp.completer import Completer, Place
from lsp.completion import ENGINE_GRACE_S, Outcome
from lsp.edit.check import Refused, check_syntax, fitted
from lsp.edit.hunks import Hunk, hunks_of
from lsp.edit.lines import definition_at, selected_lines
from lsp.engine import EngineLink
from lsp.lanes import Lane, Superseded
from prompts.edit import Around, EditPrompt, Format, answered, edit_prompt, question
from prompts.text import byte_length
from server.client import EngineError, EngineUnavailable
from server.request import Counters, SamplingParams
from server.wire import CompletionFinished, CompletionProgress, CompletionRequest

Kind = Literal["edit", "fix", "docstring", "tests", "explain"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ABOUT: tuple[Kind, ...] = ("tests", "explain")
"""These answer with a text of their own, and change nothing."""
_INSTRUCTIONS: dict[Kind, str] = {
    "fix": "Fix this: {given}",
    "docstring": "Write the documentation comment of what these lines define, in the language's own form. "
    "Change nothing else.",
    "tests": "Write tests for the lines, as a file of their own, in the way that is usual for the language. {given}",
    "explain": "Explain the lines. {given}",
}

PREFILL_SECONDS = 10.0
"""An edit's prompt may take so long to be read: nobody waits for each of them as for ghost text."""
LEAST_PROMPT = 1024
"""Tokens that a prompt may have on the slowest machine."""
TIMEOUT_MS = 300_000
LEAST_ANSWER, ANSWER_SHARE = 256, 1.5
"""Tokens of an answer: so many, and so many times those of the old lines."""
LEAST_BYTES = 800
"""Of what stands around lines and instruction in a prompt."""
REST = 10
"""Comparing thousands of lines takes a while, so it waits so many times as long before it is done again."""
AGAIN = SamplingParams(temperature=0.6, top_p=0.95, seed=1)
"""How the second answer is chosen when the first one can't be applied."""


@dataclass(frozen=True)
class EditRequest:
    """start, end: (line, column in the editor's units). version: of the document that they belong to, None for what it
    is now. given: the instruction, or the messages of the problems to fix."""

    uri: str
    start: tuple[int, int]
    end: tuple[int, int]
    kind: Kind = "edit"
    given: str = ""
    version: int | None = None


@dataclass(frozen=True)
class EditOutcome:
    """How an edit ended. reason: exactly one, of those in ``docs/language-server.md``; "ready" has hunks or a text.

    lines: (first, behind the last) that it is about. place: the document that it is for.
    """

    reason: str
    detail: str = ""
    hunks: tuple[Hunk, ...] = ()
    text: str = ""
    lines: tuple[int, int] = (0, 0)
    place: Place | None = None
    counters: Counters = field(default_factory=Counters)


Show = Callable[[Sequence[Hunk], str], None]
"""Called as an answer grows: with all hunks so far, or with all of a text so far."""


class Editor:
    """Edits open documents, one edit a document at a time. chat: whether the engine's model has a chat template."""

    def __init__(self, completer: Completer, link: EngineLink) -> None:
        self.chat = False
        self._completer = completer
        self._link = link
        self._lanes: dict[tuple[str, bool], Lane[EditOutcome]] = {}
        """By document, and whether they answer with a text: those a change of the document leaves alone."""

    def place(self, uri: str, line: int, units: int) -> Place | Outcome:
        """The place in an open document; an outcome where nothing is edited."""
        return self._completer.place(uri, line, units)

    def changed(self, uri: str) -> None:
        """The document changed or went away: an edit of it is for a text that is no more."""
        if (lane := self._lanes.get((uri, False))) is not None:
            lane.supersede()
            if lane.idle:
                del self._lanes[uri, False]

    async def edit(self, request: EditRequest, show: Show = lambda hunks, text: None) -> EditOutcome:
        """Raises nothing but CancelledError."""
        # Everything up to the first await sees the document as it was when the request came.
        place = self._completer.place(request.uri, *request.start)
        if isinstance(place, Outcome):
            return EditOutcome(place.reason, place.detail)
        if request.version not in (None, place.snapshot.version):
            return EditOutcome(
                "stale", "the selection belongs to another version of the document: ask again", place=place
            )
        if request.kind == "edit" and not request.given.strip():
            return EditOutcome("refused", "an edit needs an instruction", place=place)
        if request.kind in ABOUT and not self.chat and self._link.state == "ready":
            problem = "this model completes and edits, and can't answer questions: take a chat or instruct model"
            return EditOutcome("refused", problem, place=place)
        lines = self._lines(request, place)
        known = EditOutcome("cancelled", lines=lines, place=place)
        about = request.kind in ABOUT
        lane = self._lanes.setdefault((request.uri, about), Lane())
        try:
            outcome = await lane.request(object(), lambda: self._ask(request, known, show))
        except Superseded:
            outcome = replace(known, detail="a newer edit of the document was asked for")
        if not about and self._is_stale(place):
            detail = "the document changed meanwhile, and the newer text stays as it is: ask again"
            outcome = replace(outcome, reason="stale", detail=detail)
        return outcome

    def _is_stale(self, place: Place) -> bool:
        now = self._completer.documents.get(place.document.uri)
        return now is not place.document or now.version != place.snapshot.version

    def _lines(self, request: EditRequest, place: Place) -> tuple[int, int]:
        end = place.snapshot.cursor(*request.end, self._completer.encoding)
        start = min(place.cursor, end)
        if start == end and request.kind not in ("edit", "fix"):
            return definition_at(place.source.lines, start.line, place.language)
        return selected_lines(start, max(place.cursor, end))

    async def _ask(self, request: EditRequest, known: EditOutcome, show: Show, *, again: bool = False) -> EditOutcome:
        """again: with a prompt that is shorter than the one before, which the model's context didn't hold."""
        connection = None
        try:
            connection = self._link.engine()
            try:
                return await self._answer(request, known, show, SamplingParams())
            except _Unusable:
                return await self._answer(request, known, show, AGAIN)
        except Refused as refusal:
            return replace(known, reason="refused", detail=f"{refusal}; ask again in other words, or for fewer lines")
        except EngineUnavailable as error:
            if connection is not None:
                self._link.lost(connection)
            return replace(known, reason="error", detail=str(error))
        except EngineError as error:
            if error.code == "context_overflow" and not again:
                self._completer.budget.overflowed()
                return await self._ask(request, known, show, again=True)
            return replace(known, reason="error", detail=str(error))

    async def _answer(
        self, request: EditRequest, known: EditOutcome, show: Show, sampling: SamplingParams
    ) -> EditOutcome:
        """One answer of the engine. Raises Refused, and _Unusable where another answer may do better."""
        prompt, asked = self._prompt(request, known)
        asked = replace(asked, sampling=sampling)
        shown, again_at = 0, 0.0

        def grown(text: str) -> None:
            nonlocal shown, again_at
            now = time.perf_counter()
            if request.kind in ABOUT:
                show((), text)
            elif (lines := text.count("\n")) != shown and now >= again_at:
                shown = lines
                _show_so_far(known, prompt, text, show)
                again_at = now + REST * (time.perf_counter() - now)

        text, finished = await self._stream(asked, grown)
        known = replace(known, counters=finished.counters)
        if finished.reason in ("error", "cancelled"):
            return replace(known, reason="error", detail=finished.detail or "the engine was stopped")
        if finished.reason == "timeout":
            return replace(known, reason="timeout", detail="the answer had no end in time")
        if request.kind in ABOUT:
            if not text.strip():
                return replace(known, reason="refused", detail="the model had nothing to say")
            cut = f"the answer was cut off at {asked.max_tokens} tokens" if finished.reason == "length" else ""
            return replace(known, reason="ready", text=text.strip(), detail=cut)
        new, ended = answered(text, prompt)
        if finished.reason == "length" and not ended:
            raise Refused(f"the answer is longer than the {asked.max_tokens} tokens that it may have")
        if new is None or (prompt.fence and not ended):
            raise _Unusable("the answer holds no code between fences")
        hunks = _checked(known, new)
        show(hunks, "")
        if not hunks:
            return replace(known, reason="unchanged", detail="the answer is the text as it is")
        return replace(known, reason="ready", hunks=tuple(hunks))

    async def _stream(self, asked: CompletionRequest, show: Callable[[str], None]) -> tuple[str, CompletionFinished]:
        """The engine's answer; ``show`` is called with all of it so far. Raises EngineUnavailable and EngineError."""
        connection, text, told = self._link.engine(), "", False
        limit = TIMEOUT_MS / 1000 + ENGINE_GRACE_S
        try:
            async with asyncio.timeout(limit), aclosing(connection.complete(asked)) as events:
                async for event in events:
                    if isinstance(event, CompletionFinished):
                        return text, event
                    if isinstance(event, CompletionProgress):
                        told = event.done < event.total
                        self._completer.reading(event if told else None)
                    else:
                        text += event.text
                        show(text)
        except TimeoutError:
            self._link.suspect(connection)
            return text, CompletionFinished("timeout", Counters())
        finally:
            if told:
                self._completer.reading(None)
        raise EngineUnavailable("the engine's answer has no end")

    def _prompt(self, request: EditRequest, known: EditOutcome) -> tuple[EditPrompt, CompletionRequest]:
        """Raises Refused when there is no room for the lines."""
        assert known.place is not None
        source, (first, behind) = known.place.source.lines, known.lines
        size = sum(byte_length(line) + 1 for line in source[first:behind]) + byte_length(request.given)
        room, max_tokens = self._room(request.kind, size)
        before, left = _nearest(source[first - 1 :: -1] if first else (), room * 2 // 3)
        after, _ = _nearest(source[behind:], room // 3 + left)
        around = Around(
            self._completer.workspace.shown_path(request.uri),
            known.place.language,
            tuple(reversed(before)),
            source[first:behind],
            tuple(after),
        )
        instruction = _INSTRUCTIONS.get(request.kind, "{given}").format(given=request.given.strip()).strip()
        form: Format = "chat" if self.chat else "fim"
        prompt = question(around, instruction) if request.kind in ABOUT else edit_prompt(around, instruction, form)
        return prompt, CompletionRequest(
            prompt.segments,
            form,
            max_tokens=max_tokens,
            timeout_ms=TIMEOUT_MS,
            priority="edit",
            prediction=prompt.prediction,
            progress=True,
        )

    def _room(self, kind: Kind, size: int) -> tuple[int, int]:
        """(bytes for what stands around lines of so many bytes, tokens of the answer). Raises Refused."""
        budget = self._completer.budget
        per_token = budget.room(0, PREFILL_SECONDS).bytes_per_token
        tokens = int(size / per_token)
        max_tokens = int(ANSWER_SHARE * tokens) + (4 * LEAST_ANSWER if kind in ABOUT else LEAST_ANSWER)
        if budget.context_length:
            max_tokens = min(max_tokens, budget.context_length // 2)
        room = budget.room(max_tokens, PREFILL_SECONDS, LEAST_PROMPT).bytes - LEAST_BYTES - size
        if room < 0 or max_tokens < tokens:
            holds = max(0, min(int((room + size) / per_token), max_tokens))
            raise Refused(f"the lines have about {tokens} tokens, and there is room for {holds}")
        return room, max_tokens


class _Unusable(Refused):
    """An answer that can't be applied, where another one of the same model may."""


def _show_so_far(known: EditOutcome, prompt: EditPrompt, text: str, show: Show) -> None:
    assert known.place is not None
    new, ended = answered(text, prompt)
    if new is not None and not ended:  # the last line isn't finished
        first, behind = known.lines
        show(hunks_of(known.place.source.lines[first:behind], new[:-1], first, whole=False), "")


def _checked(known: EditOutcome, new: Sequence[str]) -> list[Hunk]:
    """What the new lines change. Raises _Unusable when they may not take the old ones' place."""
    assert known.place is not None
    source, (first, behind) = known.place.source.lines, known.lines
    old = source[first:behind]
    lines = fitted(old, new)
    if not any(map(str.strip, lines)) and any(map(str.strip, old)):
        raise _Unusable("the answer is empty")
    try:
        check_syntax(source[:first], old, lines, source[behind:], known.place.language)
    except Refused as refusal:
        raise _Unusable(str(refusal)) from refusal
    return hunks_of(old, lines, first)


def _nearest(lines: Sequence[str], room: int) -> tuple[list[str], int]:
    """The first lines that fit into so many bytes, and what is left."""
    taken = []
    for line in lines:
        size = byte_length(line) + 1
        if size > room:
            break
        taken.append(line)
        room -= size
    return taken, room
