"""Train the model's tokenizer: ``python -P -m models.train_tokenizer --text build/models/text --out FILE``.

Byte-level BPE with the ``qwen35`` pre-tokenizer and no normaliser, so that text comes back byte for byte. The
special tokens of the real vocabulary take the last ids.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from models.files import read_files
from server.model.tokenizer import QWEN35_PATTERN

VOCABULARY = 16_384
SAMPLE_BYTES = 120_000_000
SEED = 1

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
)
# Detokenising shows these, as the real vocabulary does.
PRINTED_TOKENS = frozenset(token for token in SPECIAL_TOKENS if not token.startswith("<|"))


class TokenizerError(Exception):
    """The tokenizer can't be trained on the given text."""


def untrained() -> Tokenizer:
    """Return an empty byte-level BPE tokenizer with the ``qwen35`` pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN35_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a tokenizer of exactly ``vocabulary`` tokens on ``texts``.

    When the texts give too few merges, ``[PAD0]``, ``[PAD1]``, ... fill the gap before the special tokens,
    which always take the last ids. Raises TokenizerError when there's no room for the 256 bytes and them.
    """
    room = vocabulary - len(SPECIAL_TOKENS)
    if room < 256:
        raise TokenizerError(f"a vocabulary of {vocabulary} is too small; it needs {256 + len(SPECIAL_TOKENS)} or more")
    tokenizer = untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    padding = room - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f"[PAD{i}]", special=True, normalized=False) for i in range(padding)])
    for token in SPECIAL_TOKENS:
        added = AddedToken(token, special=token not in PRINTED_TOKENS, normalized=False)
        tokenizer.add_tokens([added])
    return tokenizer


def sample(parts: Sequence[Path], size: int = SAMPLE_BYTES, seed: int = SEED) -> Iterator[str]:
    """Yield a seeded random choice of the parts' texts, about ``size`` bytes in all."""
    total = sum(part.stat().st_size for part in parts)  # JSON escapes make this a little more than the text
    share = min(1.0, size / max(1, total))
    dice = random.Random(seed)
    for part in parts:
        for file in read_files(part):
            if dice.random() < share:
                yield file.text


def bytes_per_token(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """Return the mean number of UTF-8 bytes a token stands for."""
    count = size = 0
    for text in texts:
        count += len(tokenizer.encode(text, add_special_tokens=False).ids)
        size += len(text.encode())
    return size / count if count else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the tokenizer's trainer."""
    parser = argparse.ArgumentParser(prog="models.train_tokenizer", description="Train the tokenizer.")
    parser.add_argument("--text", type=Path, required=True, help="folder with train-NN.jsonl and heldout.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="tokenizer file to write, in HF format")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="number of tokens, special ones included")
    options = parser.parse_args(arguments)
    parts = sorted(options.text.glob("train-*.jsonl"))
    if not parts:
        print(f"train_tokenizer: no train-NN.jsonl in {options.text}; run models.corpus first", file=sys.stderr)
        return 1
    start = time.monotonic()
    try:
        tokenizer = train(sample(parts), options.vocabulary)
    except TokenizerError as error:
        print(f"train_tokenizer: {error}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out))
    print(f"{tokenizer.get_vocab_size()} tokens in {time.monotonic() - start:.0f} s")
    heldout = options.text / "heldout.jsonl"
    if heldout.exists():
        ratio = bytes_per_token(tokenizer, (file.text for file in read_files(heldout)))
        print(f"{ratio:.3f} bytes per token held out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
