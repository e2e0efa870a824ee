"""A chat's prompt in tokens: by the model's template, and refused where it has none."""

from __future__ import annotations

import pytest
from scripted_engine import ScriptedTokenizer

from prompts.segments import Segment
from server.api.errors import ApiError
from server.api.running import Asked, encode_prompt
from server.model.chat_template import ChatTemplate

PARTS = (Segment("system", "S", ""), Segment("user", "a", ""), Segment("user", "b", ""))


def encoded(parts: tuple[Segment, ...], template: str | None) -> str:
    chat = ChatTemplate(template) if template is not None else None
    tokenizer = ScriptedTokenizer()
    prompt = encode_prompt(Asked("chat", parts, 5, sampling=None), tokenizer, chat)  # type: ignore[arg-type]
    assert sum(prompt.lengths) == len(prompt.ids)
    assert len(prompt.lengths) == len(prompt.starts) == len(parts)
    return "".join(map(chr, prompt.ids))


def test_parts_of_a_message_are_one_message_and_a_missing_one_is_none() -> None:
    template = "{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}{{ enable_thinking }}"
    assert encoded(PARTS, template) == "<system:S><user:ab>False"
    assert encoded(PARTS[1:], template) == "<user:ab>False"


def test_without_a_template_or_with_one_that_refuses_the_error_says_what_to_do() -> None:
    with pytest.raises(ApiError, match="no chat template: take a chat or instruct model"):
        encoded(PARTS, None)
    with pytest.raises(ApiError, match="no system here"):
        encoded(PARTS, "{{ raise_exception('no system here') }}")


class NoMarkers(ScriptedTokenizer):
    def special(self, name: str) -> None:  # type: ignore[override]
        return None


HOLE = (
    Segment("repo", "shop", ""),
    Segment("file", "def load():\n    ```\n", "open file", "b.py"),
    Segment("suffix", "\nprint(x)\n", "current", "a.py"),
    Segment("prefix", "import b\n", "current"),
    Segment("prefix", "x = b.", "current"),
)


def test_u44_a_model_without_markers_fills_in_by_chat_and_goes_on_at_the_cursor() -> None:
    chat = ChatTemplate("{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}<assistant:")
    asked = Asked("fim", HOLE, 5, sampling=None)  # type: ignore[arg-type]
    prompt = encode_prompt(asked, NoMarkers(), chat)  # type: ignore[arg-type]
    text = "".join(map(chr, prompt.ids))
    assert text.endswith("<assistant:````\nx = b.")
    places = [text.index(part) for part in ("b.py", "def load", "a.py, after", "print(x)", "import b\nx = b.\n")]
    assert places == sorted(places)
    assert (len(prompt.lengths), sum(prompt.lengths)) == (len(HOLE), len(prompt.ids))


def test_u44_without_markers_and_without_a_template_it_is_refused() -> None:
    asked = Asked("fim", HOLE, 5, sampling=None)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="it can't fill in the middle"):
        encode_prompt(asked, NoMarkers(), None)  # type: ignore[arg-type]
