"""The synthetic vocabulary is a sound byte-level tokenizer with the ids of the real one."""

from functools import cache

import pytest

from server.model.tokenizer import Tokenizer
from server.synth.presets import PRESETS
from server.synth.vocabulary import vocabulary

REAL_IDS = {
    "<|endoftext|>": 248044, "<|im_start|>": 248045, "<|im_end|>": 248046, "<|vision_pad|>": 248055,
    "<tool_call>": 248058, "</tool_call>": 248059, "<|fim_prefix|>": 248060, "<|fim_middle|>": 248061,
    "<|fim_suffix|>": 248062, "<|fim_pad|>": 248063, "<|repo_name|>": 248064, "<|file_sep|>": 248065,
    "<think>": 248068, "</think>": 248069, "<|audio_pad|>": 248076,
}  # fmt: skip


@cache
def parts(preset: str) -> tuple[list[str], list[int], list[str]]:
    return vocabulary(PRESETS[preset])


def test_special_tokens_and_padding_have_the_real_ids_and_types() -> None:
    tokens, types, _ = parts("27b")
    assert len(tokens) == len(types) == 248_320
    assert {name: tokens.index(name) for name in REAL_IDS} == REAL_IDS
    assert set(types[:248_044]) == {1}
    shown = {token for token, kind in zip(tokens, types, strict=True) if kind == 4}
    assert shown == {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
    assert (tokens[248_077], tokens[-1]) == ("[PAD248077]", "[PAD248319]")
    assert set(types[248_077:]) == {5}
    assert tokens[198], tokens[220] == ("Ċ", "Ġ")


@pytest.mark.parametrize("preset", ["tiny", "27b"])
def test_every_merge_makes_a_token_of_its_own_from_earlier_ones(preset: str) -> None:
    tokens, _, merges = parts(preset)
    known = dict.fromkeys(tokens[:256])
    for token, merge in zip(tokens[256:], merges, strict=False):
        left, right = merge.split(" ")
        assert left in known
        assert right in known
        assert left + right == token
        assert token not in known
        known[token] = None
    assert len(known) == PRESETS[preset].ordinary_tokens == 256 + len(merges)


@pytest.mark.parametrize(("preset", "step"), [("tiny", 1), ("27b", 29)])
def test_every_word_is_reached_from_its_text(preset: str, step: int) -> None:
    tokens, types, merges = parts(preset)
    tokenizer = Tokenizer(tokens, types, merges)
    for i in range(256, 256 + len(merges), step):
        assert tokenizer.encode(tokenizer.decode([i])) == [i]


def test_any_text_comes_back() -> None:
    tokenizer = Tokenizer(*parts("27b"))
    text = "def f(x):\n    return 'Grüße 🙂' + x[1:-1]  # zu bodogi\r\n\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("bodo zu") == [index("bodo"), index(" zu")]


def index(text: str) -> int:
    return parts("27b")[0].index(text.replace(" ", "Ġ"))
