"""From tokens to text that can be shown, on a real vocabulary."""

from tiny_model import TinyDims, tiny_metadata

from server.model.tokenizer import Tokenizer
from server.serving.answer_text import AnswerText

TOKENIZER = Tokenizer.from_metadata(tiny_metadata(TinyDims()))


def half_a_character() -> AnswerText:
    text = AnswerText(TOKENIZER, None)
    for token in TOKENIZER.encode("a🙂")[:-1]:
        text.push(token)
    return text


def test_half_a_character_is_not_shown_while_its_rest_may_come() -> None:
    text = half_a_character()
    event = text.take()
    assert event is not None
    assert (event.text, event.tokens) == ("a", 4)
    assert text.take() is None
    assert not text.push(TOKENIZER.encode("🙂")[-1])
    event = text.take()
    assert event is not None
    assert (event.text, event.tokens) == ("🙂", 1)
    assert text.finish(stopped=False) is None


def test_half_a_character_is_a_replacement_character_when_the_answer_ends_in_it() -> None:
    event = half_a_character().finish(stopped=False)
    assert event is not None
    assert event.text == "a\ufffd"


def test_nothing_of_it_is_left_where_a_rule_stopped() -> None:
    event = half_a_character().finish(stopped=True)
    assert event is not None
    assert event.text == "a"


def test_special_tokens_count_and_show_nothing() -> None:
    text = AnswerText(TOKENIZER, None)
    for name in ("<|im_start|>", "<think>", "<|fim_pad|>"):
        token = TOKENIZER.special(name)
        assert token is not None
        assert not text.push(token)
    assert text.take() is None
    text.push(TOKENIZER.encode("b")[0])
    event = text.take()
    assert event is not None
    assert (event.text, event.tokens) == ("b", 4)
