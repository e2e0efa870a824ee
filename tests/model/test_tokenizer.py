"""The tokenizer against a naive byte-pair encoder, against llama.cpp where it is installed, and its streaming."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_model import SPECIAL_TOKENS, TinyDims, tiny_metadata, write_tiny_model
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Trainable

from server.gguf.errors import MissingMetadata, WrongMetadata
from server.model.tokenizer import _CHARACTERS as CHARACTERS
from server.model.tokenizer import CONTROL, NORMAL, QWEN35_PATTERN, UNUSED, USER_DEFINED, Tokenizer

EMBEDDED = sorted((Path(__file__).parents[2] / "models").glob("*.gguf"))

TRICKY = [
    "",
    "def f(x):\n\treturn x  # naïve\r\n\r\n    y = 10_000\n",
    "I'll we'RE it'ſ it'ſa 'S 'llama don't",
    "e\u0301 e\u0301te\u0301 \u0301 1\u0301 +\u0301 \u0e01\u0e31\u0e19 क्षि",
    "ﬁ ﬀ Å \u212b é é \u1e9b\u0323",  # compatibility characters and both forms of é stay what they are
    "🙂👩‍👩‍👧🏽 🇩🇪 ©\ufe0f \ufeff",
    "a\r\nb\rc\n\r\n  \n\t\n x",
    "    \n        \n  x   \n   ",
    "\x00\x01\x1c \x1d\x7f\x85 \xa0\u2003\u2028x",
    "!!!\n\n)))\r\n== !=\n'''\n\"\"\"",
    "<|fim_middle|> <think> </think><|endoftext|><|im_start|>user",
    "x" * 500 + " " * 333 + "=" * 257 + "\n" * 50 + "1" * 40,
    "名前 = 値：１２３Ⅷ½",
]

SAMPLE = (
    "".join(
        f"def area_{name}(width, height):\n    '''Größe of a {name}: 面積 e\u0301.'''\n\n    return width  # {name}\r\n"
        for name in ("square", "box", "frame", "sheet", "window", "panel", "🙂", "l'été")
    )
    + "".join(TRICKY)
    + "ſa xſa " * 99
)


def trained_metadata() -> dict[str, Any]:
    """A file's metadata with a few hundred real merges, the special tokens after them, and padding."""
    trainable = Trainable(models.BPE())
    trainable.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN35_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False, max_token_length=16)
    trainable.train_from_iterator([SAMPLE] * 3, trainer)
    model = json.loads(trainable.to_str())["model"]
    tokens = [*model["vocab"], *SPECIAL_TOKENS, "[PAD0]"]
    controls = [CONTROL if token.startswith("<|") else USER_DEFINED for token in SPECIAL_TOKENS]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return tiny_metadata(TinyDims()) | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(model["vocab"]) + controls + [UNUSED],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }


METADATA = trained_metadata()
TOKENS: list[str] = METADATA["tokenizer.ggml.tokens"]
TOKENIZER = Tokenizer.from_metadata(METADATA)
PRINTED = {i for token, i in TOKENIZER.specials.items() if not token.startswith("<|")}

any_text = st.text(st.characters(codec="utf-8"))
tricky_text = st.lists(
    st.sampled_from(
        [*" \n\r\taest'1)_", "é", "e\u0301", "\u0301", "中", "🙂", "\x85", "<|fim_middle|>", "<think>", "    "]
    )
).map("".join)


# The pattern as the model's own tokenizer has it; the case of its contractions is that of ASCII letters.
REFERENCE = regex.compile(
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@lru_cache
def reference() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(METADATA["tokenizer.ggml.merges"])}
    return {token: i for i, token in enumerate(TOKENS)}, ranks  # type: ignore[return-value]


def naive_encode(text: str) -> list[int]:
    """Byte-pair encoding as it is defined: always the merge of lowest rank, the leftmost first."""
    ids, ranks = reference()
    characters = {byte: character for character, byte in CHARACTERS.items()}
    out: list[int] = []
    for word in REFERENCE.findall(text):
        parts = [characters[byte] for byte in word.encode()]
        while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]:
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        out += [ids[part] for part in parts]
    return out


# --- text to ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TRICKY)
def test_ids_equal_a_naive_encoder_on_tricky_text(text: str) -> None:
    assert TOKENIZER.encode(text) == naive_encode(text)


@given(st.one_of(any_text, tricky_text))
def test_ids_equal_a_naive_encoder_and_come_back_as_the_same_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids == naive_encode(text)
    assert TOKENIZER.decode(ids) == text


def test_merges_are_used() -> None:
    assert len(TOKENIZER.encode(SAMPLE)) < len(SAMPLE.encode()) / 2


def test_special_tokens_in_text_are_ordinary_text() -> None:
    for token in TOKENIZER.specials:
        ids = TOKENIZER.encode(f"a{token}b")
        assert not set(ids) & set(TOKENIZER.specials.values())
        assert TOKENIZER.decode(ids) == f"a{token}b"


def test_lone_surrogates_become_replacement_characters_and_pairs_become_characters() -> None:
    assert TOKENIZER.encode("a\ud800b\udc00") == TOKENIZER.encode("a\ufffdb\ufffd")
    assert TOKENIZER.encode("\ud83d\ude42") == TOKENIZER.encode("🙂")


def test_long_runs_take_linear_time() -> None:
    text = " " * 200_000 + "\n" * 100_000 + "a" * 100_000
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


# --- ids to text -----------------------------------------------------------------------------------------------


def id_of_byte(byte: int) -> int:
    return TOKENS.index({b: c for c, b in CHARACTERS.items()}[byte])


def all_ids() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(TOKENIZER) - 1))


@given(all_ids(), st.booleans())
@example([id_of_byte(0xED), id_of_byte(0xA1)], False)
def test_streaming_equals_decoding_at_every_cut(ids: list[int], user_defined: bool) -> None:
    stream = TOKENIZER.stream(user_defined=user_defined)
    parts: list[str] = []
    for count, token in enumerate(ids, 1):
        parts.append(stream.push(token))
        whole = TOKENIZER.decode(ids[:count], user_defined=user_defined)
        shown = "".join(parts)
        assert whole.startswith(shown)
        assert whole[len(shown) :] in ("", "\ufffd")  # what is held back is one unfinished character
    assert "".join(parts) + stream.flush() == TOKENIZER.decode(ids, user_defined=user_defined)
    assert stream.flush() == ""


def test_a_character_in_several_tokens_appears_whole_with_its_last_one() -> None:
    stream = TOKENIZER.stream()
    ids = [id_of_byte(byte) for byte in "🙂".encode()]
    assert [stream.push(i) for i in ids] == ["", "", "", "🙂"]
    assert stream.flush() == ""


def test_invalid_bytes_become_replacement_characters_once_they_are_certain() -> None:
    stream = TOKENIZER.stream()
    first = id_of_byte(0xF0)
    assert stream.push(first) == ""
    assert stream.push(TOKENS.index("a")) == "\ufffda"
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"
    # The first two bytes of a surrogate, which UTF-8 can't hold; D7FF is the last character before them.
    assert [stream.push(id_of_byte(byte)) for byte in (0xED, 0xA0, 0x80)] == ["", "\ufffd\ufffd", "\ufffd"]
    assert [stream.push(id_of_byte(byte)) for byte in (0xED, 0x9F, 0xBF)] == ["", "", "\ud7ff"]


def test_control_tokens_and_padding_are_never_shown() -> None:
    a = TOKENS.index("a")
    for token in (*TOKENIZER.hidden_tokens, TOKENS.index("[PAD0]")):
        assert TOKENIZER.decode([a, token, a]) == "aa"
        assert TOKENIZER.stream().push(token) == ""
    assert {i for t, i in TOKENIZER.specials.items() if t.startswith("<|")} <= TOKENIZER.hidden_tokens


def test_thinking_and_tool_tags_are_shown_in_a_chat_and_can_be_hidden() -> None:
    ids = [TOKENIZER.specials["<think>"], TOKENS.index("a"), TOKENIZER.specials["</tool_call>"]]
    assert TOKENIZER.decode(ids) == "<think>a</tool_call>"
    assert TOKENIZER.decode(ids, user_defined=False) == "a"
    assert TOKENIZER.user_defined == PRINTED


def test_every_end_of_text_token_ends_a_generation() -> None:
    names = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_middle|>")
    assert {TOKENIZER.special(name) for name in names} <= TOKENIZER.end_tokens
    assert TOKENIZER.special("<|im_start|>") not in TOKENIZER.end_tokens
    other = Tokenizer.from_metadata(METADATA | {"tokenizer.ggml.eot_token_id": 7})
    assert other.end_tokens == TOKENIZER.end_tokens | {7}
    assert other.decode([7]) == ""


@pytest.mark.parametrize("token", [-1, len(TOKENS)])
def test_an_id_outside_the_vocabulary_is_an_error(token: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TOKENIZER.decode([token])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TOKENIZER.stream().push(token)


def test_unknown_special_tokens_are_none() -> None:
    assert TOKENIZER.special("a") is None
    assert TOKENIZER.special("<|nothing|>") is None


# --- files without a usable tokenizer --------------------------------------------------------------------------


def changed(key: str, value: Any) -> dict[str, Any]:
    return METADATA | {f"tokenizer.ggml.{key}": value}


def lacking(key: str) -> dict[str, Any]:
    return {k: v for k, v in METADATA.items() if k != f"tokenizer.ggml.{key}"}


@pytest.mark.parametrize("key", ["model", "pre", "tokens", "token_type", "merges"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(MissingMetadata, match=rf"^m\.gguf: the metadata key tokenizer\.ggml\.{key} is missing\. Use "):
        Tokenizer.from_metadata(lacking(key), "m.gguf")


def test_a_file_without_tokenizer_says_so_and_what_to_do() -> None:
    file: Any = SimpleNamespace(metadata={"tokenizer.ggml.model": "none"}, path=Path("m.gguf"))
    with pytest.raises(
        MissingMetadata, match=r"^m\.gguf: the file has no tokenizer .* Use a GGUF file of the Qwen3\.5"
    ):
        Tokenizer.from_file(file)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (changed("model", "llama"), "tokenizer.ggml.model is 'llama'; only 'gpt2'"),
        (changed("pre", "qwen2"), "tokenizer.ggml.pre is 'qwen2'; only 'qwen35'"),
        (changed("model", ["gpt2"] * 99), "only 'gpt2'"),
        (changed("tokens", "abc"), "tokens is not an array of kind str"),
        (changed("tokens", [1, 2]), "tokens is not an array of kind str"),
        (changed("token_type", [1.0]), "token_type is not an array of kind int"),
        (changed("token_type", [1]), "but 1 token types"),
        (changed("token_type", [9] * len(TOKENS)), "unknown type 9"),
        (changed("tokens", TOKENS[:1] * len(TOKENS)), "the same token twice"),
        (changed("token_type", [3] * len(TOKENS)), "no token for 256 of the 256 bytes"),
        (changed("merges", ["a zzzzzz"]), "merges don't fit"),
        (changed("merges", ["ab"]), "not two tokens"),
        (changed("merges", [""]), "not two tokens"),
        (changed("eos_token_id", len(TOKENS)), "outside the vocabulary"),
        (changed("eos_token_id", "x"), "eos_token_id is not of kind int"),
    ],
)
def test_an_unusable_tokenizer_is_one_typed_error(metadata: dict[str, Any], problem: str) -> None:
    with pytest.raises(WrongMetadata, match=regex.escape(problem)):
        Tokenizer.from_metadata(metadata, "m.gguf")


# --- llama.cpp -------------------------------------------------------------------------------------------------

ASK_LLAMA_CPP = """
import json, sys, urllib.request
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_gpu_layers, params.warmup = sys.argv[1], 256, 0, False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
answers = []
for text in json.load(sys.stdin):
    body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    answers.append(json.loads(urllib.request.urlopen(request).read())["tokens"])
with open(sys.argv[2], "w") as file:
    json.dump(answers, file)
"""


def llama_cpp_ids(model: Path, texts: list[str], folder: Path) -> list[list[int]]:
    """In a process of its own: the library aborts the process on what it doesn't like."""
    answers = folder / "answers.json"
    command = [sys.executable, "-P", "-c", ASK_LLAMA_CPP, str(model), str(answers)]
    subprocess.run(command, input=json.dumps(texts), text=True, check=True, capture_output=True, timeout=100)
    found: list[list[int]] = json.loads(answers.read_text())
    return found


needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the optional package xllamacpp is not installed"
)
# llama.cpp recognises user-defined tokens in every text, so those are left out here.
COMPARED = [text.replace("<think>", "").replace("</think>", "") for text in (*TRICKY[1:], SAMPLE)]


@needs_llama_cpp
def test_ids_equal_llama_cpp_on_a_small_vocabulary(tmp_path: Path) -> None:
    def edit(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        metadata.update({key: value for key, value in METADATA.items() if key.startswith("tokenizer.")})

    model = write_tiny_model(tmp_path / "tiny.gguf", edit=edit, vocab=len(TOKENS))
    assert llama_cpp_ids(model, COMPARED, tmp_path) == [TOKENIZER.encode(text) for text in COMPARED]


@needs_llama_cpp
@pytest.mark.skipif(not EMBEDDED, reason="the embedded model is not in this checkout")
def test_ids_equal_llama_cpp_on_the_embedded_file(tmp_path: Path) -> None:
    from server.gguf.reader import ModelFile

    tokenizer = Tokenizer.from_file(ModelFile.open(EMBEDDED[0]))
    assert llama_cpp_ids(EMBEDDED[0], COMPARED, tmp_path) == [tokenizer.encode(text) for text in COMPARED]
