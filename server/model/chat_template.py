"""Renders a model file's own chat template, in a sandbox: it is a program that came with a download.

What messages contain never becomes a special token. Before rendering, an invisible guard character is put into every
message text wherever a special token could begin or end; the tokenizer recognises specials in the rendered text, where
only the template can have written them whole, and then takes the guards out (`Tokenizer.encode_chat`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from server.gguf.reader import ModelFile
    from server.model.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""A message as in the OpenAI API: role, content, and for an assistant reasoning_content and tool_calls."""

GUARDS = tuple(map(chr, (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF1000))))
"""Characters no text is made of (Unicode's noncharacters, then a private plane), in order of preference."""


class ChatTemplateError(Exception):
    """The chat template is absent or broken, or it refuses these messages. `str()` says which and why."""


@dataclass(frozen=True)
class RenderedChat:
    """A rendered chat; `guard` stands in `marked` where a message's text could be mistaken for a special token."""

    marked: str
    guard: str

    @property
    def text(self) -> str:
        """The chat as people read it."""
        return self.plain(0, len(self.marked))

    def plain(self, start: int, stop: int) -> str:
        """A part of `marked` without guards."""
        return self.marked[start:stop].replace(self.guard, "")


class ChatTemplate:
    """A chat template ready to render; `origin` is what its errors name."""

    def __init__(
        self,
        source: str,
        specials: Iterable[str] = (),
        *,
        constants: Mapping[str, str] | None = None,
        origin: Path | str = "the chat template",
    ) -> None:
        """`specials` are guarded against in messages; `constants` are names the template may use.

        Raises ChatTemplateError for a syntax error.
        """
        self._origin = origin
        self._first = frozenset(token[0] for token in specials if token)
        self._last = frozenset(token[-1] for token in specials if token)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(constants or {}, raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            problem = f"its chat template is broken at line {error.lineno}: {error.message}"
            raise ChatTemplateError(f"{origin}: {problem}. Use another file of this model.") from None

    @classmethod
    def from_file(cls, file: ModelFile, tokenizer: Tokenizer) -> ChatTemplate:
        """The template in a model file. Raises ChatTemplateError when there is none or it is broken."""
        source = file.metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ChatTemplateError(f"{file.path}: it has no chat template. Use an instruct or chat model's file.")
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        constants = {}
        for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")):
            index = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            if isinstance(tokens, list) and isinstance(index, int) and 0 <= index < len(tokens):
                constants[name] = str(tokens[index])
        return cls(source, tokenizer.specials, constants=constants, origin=file.path)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> RenderedChat:
        """The chat as one prompt. `options` reach the template as variables (enable_thinking, preserve_thinking, ...).

        Tool-call arguments given as JSON text are parsed first, and thinking inside an assistant's content becomes its
        reasoning_content, since templates look for both forms. Raises ChatTemplateError when the template refuses the
        messages or fails on them.
        """
        prepared = [_prepare(message, number) for number, message in enumerate(messages, 1)]
        guard = _unused_guard((prepared, tools, options))
        table = {ord(c): c + guard for c in self._first} | {ord(c): guard + c for c in self._last - self._first}
        table |= {ord(c): guard + c + guard for c in self._first & self._last}
        variables = _translated(options, table)
        variables["messages"] = _translated(prepared, table)
        variables["tools"] = _translated(list(tools), table) if tools else None
        variables["add_generation_prompt"] = add_generation_prompt
        try:
            marked = self._template.render(variables)
        except _RefusedError as refusal:
            problem = f"the chat template refuses these messages: {refusal.message}"
            raise ChatTemplateError(problem.replace(guard, "")) from None
        except Exception as error:  # a template is a program: it can fail in every way a program can
            detail = f"{type(error).__name__}: {error}".replace(guard, "")
            problem = f"its chat template fails on these messages ({detail})"
            raise ChatTemplateError(f"{self._origin}: {problem}. Send other messages or use another file.") from None
        return RenderedChat(marked, guard)


class _RefusedError(TemplateError):
    """What `raise_exception` in a template raises."""


def _refuse(message: object) -> NoReturn:
    raise _RefusedError(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON with guards left as they are. Jinja's own filter writes `<` as an escape, which is for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        text = "".join(c if c.isascii() or c in GUARDS else json.dumps(c)[1:-1] for c in text)
    return text


def _prepare(message: Message, number: int) -> dict[str, Any]:
    prepared = dict(message)
    content = prepared.get("content")
    if prepared.get("role") == "assistant" and isinstance(content, str) and not prepared.get("reasoning_content"):
        reasoning, closed, answer = content.partition("</think>")
        reasoning = reasoning.lstrip().removeprefix("<think>")  # the opening tag is in the prompt, so it may be absent
        if closed and "<think>" not in reasoning:
            prepared["reasoning_content"] = reasoning.strip("\n")
            prepared["content"] = answer.lstrip("\n")
    if calls := prepared.get("tool_calls"):
        prepared["tool_calls"] = [_prepare_call(call, number) for call in calls]
    return prepared


def _prepare_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The call with its arguments as a mapping, whether or not it is wrapped in `function`."""
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _prepare_call(call["function"], number)}
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            arguments = None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        problem = f"message {number}: the arguments of the call of {call.get('name')!r} are not a JSON object"
        raise ChatTemplateError(f"{problem}. Send them as an object, or as its JSON text.")
    return {**call, "arguments": arguments}


def _unused_guard(value: object) -> str:
    used: set[str] = set()
    _collect(value, used)
    for guard in GUARDS:
        if guard not in used:
            return guard
    raise ChatTemplateError("the messages use every noncharacter of Unicode. Remove them: they are not text.")


def _collect(value: object, characters: set[str]) -> None:
    if isinstance(value, str):
        if not value.isascii():
            characters.update(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(key, characters)
            _collect(item, characters)
    elif isinstance(value, Sequence):
        for item in value:
            _collect(item, characters)


def _translated(value: Any, table: dict[int, str]) -> Any:
    """A deep copy of `value` with every string translated, mapping keys too."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, Mapping):
        return {_translated(key, table): _translated(item, table) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_translated(item, table) for item in value]
    return value
