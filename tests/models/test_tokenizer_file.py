"""The tokenizer that training encodes with: the one of inference, deaf to special tokens in text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as BytePairTokenizer

from models.files import File
from models.tokenizer_file import byte_lengths, load_tokenizer, tokenizer_metadata
from models.train_tokenizer import SPECIAL_TOKENS, train
from server.model.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_text_that_spells_a_special_token_stays_text(tokenizer_path: Path, token: str) -> None:
    tokenizer = load_tokenizer(tokenizer_path)
    text = f"x = '{token}'\n"
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.specials.values())
    assert tokenizer.decode(ids) == text
    assert tokenizer.special(token) == BytePairTokenizer.from_file(str(tokenizer_path)).token_to_id(token)


def test_ordinary_text_gets_the_ids_that_the_trained_file_gives(tokenizer_path: Path, text_files: list[File]) -> None:
    ours, trained = load_tokenizer(tokenizer_path), BytePairTokenizer.from_file(str(tokenizer_path))
    for text in [text_files[0].text, "naïve 'LL \r\n\t漢字 🙂 12345 e\u0301\n", "I'll don'T we'Re"]:
        assert ours.encode(text) == trained.encode(text).ids


def test_token_types_say_what_is_hidden_what_is_shown_and_what_is_padding(tmp_path: Path) -> None:
    train(["a b"], 300).save(str(tmp_path / "t.json"))
    metadata = tokenizer_metadata(tmp_path / "t.json")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    kinds = {str(token): kind for token, kind in zip(tokens, types, strict=True)}
    assert len(tokens) == 300
    assert kinds["<|fim_middle|>"] == CONTROL
    assert kinds["<think>"] == USER_DEFINED
    assert kinds["[PAD0]"] == UNUSED
    assert kinds["a"] == NORMAL


def test_a_file_whose_ids_have_a_gap_is_refused(tokenizer_path: Path, tmp_path: Path) -> None:
    content = json.loads(tokenizer_path.read_text())
    content["added_tokens"][-1]["id"] += 1
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="train the tokenizer again"):
        tokenizer_metadata(tmp_path / "t.json")


def test_byte_lengths_of_a_text_add_up_to_its_size(tokenizer_path: Path) -> None:
    tokenizer, lengths = load_tokenizer(tokenizer_path), byte_lengths(tokenizer_path)
    text = "def f(x: list[str]) -> None:  # naïve 漢 🙂 [:] <b>\n    return x[:]\n"
    assert sum(lengths[i] for i in tokenizer.encode(text)) == len(text.encode())
    assert {lengths[i] for i in tokenizer.specials.values()} == {0}
