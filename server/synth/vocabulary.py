"""A synthetic byte-level vocabulary of any size, with the special tokens of the real one.

Its words are syllables of a consonant and a vowel, one to three of them, each with and without a space before it.
Every word is reached from its own text by the merges, so text -> ids -> text -> ids holds for it.
"""

from __future__ import annotations

from itertools import product

from server.synth.presets import SPECIAL_TOKENS, Preset

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""`tokenizer.ggml.token_type`."""

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
"""In the order of their ids, from 248044 in the real vocabulary."""
assert len(SPECIALS) == SPECIAL_TOKENS

_SHOWN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Special tokens that are part of an answer's text."""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTE_SYMBOLS = (*map(chr, _PRINTABLE), *(chr(256 + i) for i in range(256 - len(_PRINTABLE))))
"""The 256 bytes as byte-level BPE writes them, in the order of their ids: newline is 198, space 220."""
SPACE = BYTE_SYMBOLS[220]

SYLLABLES = tuple(consonant + vowel for consonant, vowel in product("bcdfghjklmnpqrstvwxz", "aeiou"))
_COUNT = len(SYLLABLES)
_STRIDE = 700_001  # shares no factor with _COUNT ** 3, so that its multiples meet every triple once

CHAT_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary(preset: Preset) -> tuple[list[str], list[int], list[str]]:
    """(tokens, their types, merges by rank). Raises ValueError for more words than syllables make."""
    merges = _merges(preset.ordinary_tokens - len(BYTE_SYMBOLS))
    tokens = [*BYTE_SYMBOLS, *(left + right for left, right in merges), *SPECIALS]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), preset.vocab)]
    types = [NORMAL] * preset.ordinary_tokens
    types += [USER_DEFINED if token in _SHOWN else CONTROL for token in SPECIALS]
    types += [UNUSED] * preset.padding
    return tokens, types, [f"{left} {right}" for left, right in merges]


def _merges(count: int) -> list[tuple[str, str]]:
    """Words by themselves first, then the same words behind a space: a word is complete before the space joins it."""
    words = [_word(i) for i in range((count + 1) // 2)]
    return words + [(SPACE, left + right) for left, right in words[: count // 2]]


def _word(i: int) -> tuple[str, str]:
    """The two tokens that merge into word i: syllables, then pairs of them, then triples."""
    if i < _COUNT:
        return SYLLABLES[i][0], SYLLABLES[i][1]
    i -= _COUNT
    if i < _COUNT**2:
        return SYLLABLES[i // _COUNT], SYLLABLES[i % _COUNT]
    i -= _COUNT**2
    if i >= _COUNT**3:
        raise ValueError(f"only {_COUNT + _COUNT**2 + _COUNT**3} words can be made of {_COUNT} syllables")
    rest, third = divmod(i * _STRIDE % _COUNT**3, _COUNT)
    first, second = divmod(rest, _COUNT)
    a, b, c = SYLLABLES[first], SYLLABLES[second], SYLLABLES[third]
    # Of two pairs that share a syllable, the one of lower rank is merged, the left one when they are equal.
    return (a + b, c) if (first, second) <= (second, third) else (a, b + c)
