"""The tokenizer of a model file: text to ids, and ids to text that is shown.

Special tokens are never recognised in text. A user's file that contains ``<|fim_middle|>`` or ``<think>`` is ordinary
text, so the byte-pair encoder doesn't know these tokens at all; a prompt places their ids itself.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BytePairEncoder

from server.gguf.errors import MissingMetadata, WrongMetadata

if TYPE_CHECKING:
    from server.gguf.header import Value
    from server.gguf.reader import ModelFile
    from server.model.chat_template import RenderedChat

Entry = TypeVar("Entry", str, int)

# \p{M} joins words: the one change against qwen2. The contractions are spelled out because `(?i:'s)` also matches
# U+017F, the long s, in the regex engine used here, and in no other implementation of this tokenizer.
QWEN35_PATTERN = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""``tokenizer.ggml.token_type``."""

END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
END_TOKENS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
"""A model that writes one of these has left the text it was asked for."""

# Byte-level BPE writes every byte as one visible character: printable Latin-1 as itself, the rest from U+0100 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
_CHARACTERS = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}
_TO_LATIN_1 = {ord(character): byte for character, byte in _CHARACTERS.items()}

_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Byte-level BPE with the ``qwen35`` pre-tokenizer, no normaliser and no start token.

    `specials` maps the text of every control and user-defined token to its id. `end_tokens`: ids that end a
    generation. `hidden_tokens`: ids that are never shown. `user_defined`: ids of tokens such as ``<think>`` and
    ``<tool_call>``, which are part of a chat's text but not of a completion's. `longest`: bytes that one id of `encode`
    stands for at most.
    """

    def __init__(
        self,
        tokens: list[str],
        types: list[int],
        merges: list[str],
        end_ids: Iterable[int] = (),
        path: Path | str = "tokenizer",
    ) -> None:
        """Raises WrongMetadata, naming `path`, when the parts don't make a byte-level BPE tokenizer."""
        if len(tokens) != len(types):
            raise WrongMetadata(path, f"the tokenizer has {len(tokens)} tokens but {len(types)} token types")
        if bad := set(types) - {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED}:
            raise WrongMetadata(path, f"the tokenizer has tokens of the unknown type {min(bad)}")
        self._tokens = tokens
        self._bytes: list[bytes | None] = [None] * len(tokens)
        self._encoder = _byte_pair_encoder(tokens, types, merges, path)
        self.specials = {
            token: i
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        }
        ends = {self.specials[token] for token in END_TOKENS if token in self.specials} | set(end_ids)
        if bad := {i for i in ends if not 0 <= i < len(tokens)}:
            raise WrongMetadata(path, f"the end token {min(bad)} is outside the vocabulary of {len(tokens)}")
        self.end_tokens = frozenset(ends)
        self.user_defined = frozenset(i for i in self.specials.values() if types[i] == USER_DEFINED) - self.end_tokens
        silent = (UNKNOWN, CONTROL, UNUSED)
        self.longest = max(len(token) for token, kind in zip(tokens, types, strict=True) if kind == NORMAL)
        self.hidden_tokens = self.end_tokens | {i for i, kind in enumerate(types) if kind in silent}
        longest_first = sorted(filter(None, self.specials), key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @classmethod
    def from_file(cls, file: ModelFile) -> Tokenizer:
        """Raises MissingMetadata or WrongMetadata for a file without a tokenizer of this kind."""
        return cls.from_metadata(file.metadata, file.path)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Value], path: Path | str = "tokenizer") -> Tokenizer:
        """The tokenizer of a model file's metadata; `path` is what errors name. Raises as `from_file`."""
        if metadata.get("tokenizer.ggml.model") == "none":
            raise MissingMetadata(path, "the file has no tokenizer (tokenizer.ggml.model is none)", hint=_NEEDED)
        for key, wanted in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen35")):
            if key not in metadata:
                raise MissingMetadata(path, f"the metadata key {key} is missing", hint=_NEEDED)
            if metadata[key] != wanted:
                problem = f"{key} is {metadata[key]!r:.60}; only {wanted!r} is supported"
                raise WrongMetadata(path, problem, hint=_NEEDED)
        ends = [_integer(metadata, key, path) for key in END_KEYS if key in metadata]
        return cls(
            _array(metadata, "tokenizer.ggml.tokens", str, path),
            _array(metadata, "tokenizer.ggml.token_type", int, path),
            _array(metadata, "tokenizer.ggml.merges", str, path),
            ends,
            path,
        )

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text. A lone surrogate, which UTF-8 can't hold, counts as U+FFFD."""
        if _SURROGATE.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        # The batch form leaves out the character offsets, which cost more than the ids.
        return self._encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def encode_chat(self, rendered: RenderedChat) -> list[int]:
        """The ids of a rendered chat: specials count where the template wrote them, not where a message did."""
        ids: list[int] = []
        at = 0
        for match in self._special_pattern.finditer(rendered.marked):
            ids += self.encode(rendered.plain(at, match.start()))
            ids.append(self.specials[match.group()])
            at = match.end()
        return ids + self.encode(rendered.plain(at, len(rendered.marked)))

    def special(self, name: str) -> int | None:
        """The id of a control or user-defined token, as ``<|fim_prefix|>``; None when there is none."""
        return self.specials.get(name)

    def decode(self, ids: Iterable[int], *, user_defined: bool = True) -> str:
        """The text of ids, hidden tokens left out, bytes that are no UTF-8 as U+FFFD.

        user_defined=False leaves out ``<think>`` and its like as well. Raises ValueError for an id outside the
        vocabulary.
        """
        return b"".join(self._shown(i, user_defined) for i in ids).decode("utf-8", "replace")

    def stream(self, *, user_defined: bool = True) -> StreamDecoder:
        """A decoder whose pushes and final flush, joined, equal `decode` of the same ids."""
        return StreamDecoder(self, user_defined)

    def _shown(self, token: int, user_defined: bool) -> bytes:
        if not 0 <= token < len(self._tokens):
            raise ValueError(f"token id {token} is outside the vocabulary of {len(self._tokens)}")
        if token in self.hidden_tokens or (not user_defined and token in self.user_defined):
            return b""
        found = self._bytes[token]
        if found is None:
            text = self._tokens[token]
            found = text.encode("utf-8", "replace") if token in self.user_defined else _bytes_of(text)
            self._bytes[token] = found
        return found


class StreamDecoder:
    """Turns a stream of ids into text, whole characters only; made by `Tokenizer.stream`."""

    def __init__(self, tokenizer: Tokenizer, user_defined: bool) -> None:
        self._tokenizer = tokenizer
        self._user_defined = user_defined
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that became certain with this id. Raises ValueError outside the vocabulary."""
        text = self._decoder.decode(self._tokenizer._shown(token, self._user_defined))
        pending = self._decoder.getstate()[0]
        if pending[:1] == b"\xed" and pending[1:] >= b"\xa0":
            # Python's decoder waits for the third byte of a surrogate, though no third byte makes it valid.
            text += self.flush()
        return text

    def flush(self) -> str:
        """U+FFFD when the ids ended inside a character, otherwise nothing. The decoder can be used again."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


_NEEDED = "Use a GGUF file of the Qwen3.5 family with its vocabulary (gpt2 with the qwen35 pre-tokenizer)."


def _byte_pair_encoder(tokens: list[str], types: list[int], merges: list[str], path: Path | str) -> BytePairEncoder:
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == NORMAL}
    if len(vocabulary) != types.count(NORMAL):
        raise WrongMetadata(path, "the tokenizer has the same token twice")
    if missing := _CHARACTERS.keys() - vocabulary.keys():  # the encoder would drop such bytes without a word
        raise WrongMetadata(path, f"the tokenizer has no token for {len(missing)} of the 256 bytes")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    if not all(right for _, right in pairs):
        raise WrongMetadata(path, "the tokenizer has a merge that is not two tokens")
    try:
        model = models.BPE(vocabulary, pairs)
    except Exception as error:  # the library raises nothing more special
        raise WrongMetadata(path, f"the tokenizer's merges don't fit its tokens ({error})") from None
    encoder = BytePairEncoder(model)
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN35_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return encoder


def _bytes_of(token: str) -> bytes:
    """The bytes a token stands for; a character outside the byte alphabet stands for itself."""
    try:
        return token.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return b"".join(bytes([_CHARACTERS[c]]) if c in _CHARACTERS else c.encode() for c in token)


def _array(metadata: Mapping[str, Value], key: str, kind: type[Entry], path: Path | str) -> list[Entry]:
    if key not in metadata:
        raise MissingMetadata(path, f"the metadata key {key} is missing", hint=_NEEDED)
    found = metadata[key]
    if not isinstance(found, list) or set(map(type, found)) - {kind}:
        raise WrongMetadata(path, f"{key} is not an array of kind {kind.__name__}", hint=_NEEDED)
    return cast(list[Entry], found)


def _integer(metadata: Mapping[str, Value], key: str, path: Path | str) -> int:
    found = metadata[key]
    if type(found) is not int:
        raise WrongMetadata(path, f"{key} is not of kind int", hint=_NEEDED)
    return found
