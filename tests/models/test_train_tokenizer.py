"""The tokenizer's trainer on small texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from models.train_tokenizer import (
    SPECIAL_TOKENS,
    TokenizerError,
    bytes_per_token,
    main,
    sample,
    train,
    untrained,
)

TEXT = "".join(
    f"def area_{shape}(width, height):\n    '''Area of a {shape}.'''\n    return width * height\n\n"
    for shape in ("square", "box", "frame", "sheet", "window", "panel")
)


def pieces(text: str) -> list[str]:
    """The pre-tokenizer's pieces of ``text``, as slices of it."""
    tokenizer = untrained()
    assert tokenizer.pre_tokenizer is not None
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 123", ["x", " =", " ", "1", "2", "3"]),
        ("    return self.x\n", ["   ", " return", " self", ".x", "\n"]),
        ("I'll don'T", ["I", "'ll", " don", "'T"]),
        ("a):\n\n    b", ["a", "):\n\n", "   ", " b"]),
        ("ne\u0301e", ["ne\u0301e"]),  # combining marks join words
        ("+\u0301", ["+\u0301"]),  # and are not punctuation: the sign leads the word
    ],
)
def test_text_is_cut_as_qwen35_cuts_it(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


def test_special_tokens_take_the_last_ids_in_order() -> None:
    tokenizer = train([TEXT], 300)
    assert tokenizer.get_vocab_size() == 300
    assert [tokenizer.id_to_token(300 - len(SPECIAL_TOKENS) + i) for i in range(len(SPECIAL_TOKENS))] == list(
        SPECIAL_TOKENS
    )


def test_all_bytes_are_tokens_so_any_text_comes_back() -> None:
    tokenizer = train([TEXT], 300)
    assert all(tokenizer.token_to_id(symbol) is not None for symbol in pre_tokenizers.ByteLevel.alphabet())
    text = "\tü ﬁ \u0301e 中 🙂 \r\n\x00"  # nothing is normalised, not even the ligature
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_small_text_is_padded_to_the_vocabulary_before_the_special_tokens() -> None:
    tokenizer = train(["a b"], 400)
    assert tokenizer.get_vocab_size() == 400
    assert tokenizer.token_to_id("[PAD0]") is not None
    assert tokenizer.token_to_id(SPECIAL_TOKENS[-1]) == 399


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(TokenizerError, match="271 or more"):
        train([TEXT], 270)


def test_control_tokens_are_hidden_and_think_and_tool_tags_are_printed() -> None:
    tokenizer = train([TEXT], 300)
    ids = tokenizer.encode("<|im_start|><think>a</think><|im_end|>").ids
    assert len(ids) == 5
    assert tokenizer.decode(ids) == "<think>a</think>"


def test_learnt_merges_make_tokens_longer_than_bytes() -> None:
    assert bytes_per_token(train([TEXT], 271), [TEXT]) == pytest.approx(1.0)
    assert bytes_per_token(train([TEXT], 500), [TEXT]) > 2.0


def test_the_sample_is_a_seeded_share_of_all_parts(tmp_path: Path) -> None:
    for part in range(2):
        rows = [json.dumps({"package": "p", "path": f"{n}.py", "text": f"{part}-{n:04}" * 10}) for n in range(500)]
        (tmp_path / f"train-{part:02}.jsonl").write_text("\n".join(rows) + "\n")
    parts = sorted(tmp_path.glob("*.jsonl"))
    size = sum(p.stat().st_size for p in parts) // 2
    texts = list(sample(parts, size, seed=1))
    assert 400 < len(texts) < 600
    assert {text[0] for text in texts} == {"0", "1"}
    assert texts == list(sample(parts, size, seed=1)) != list(sample(parts, size, seed=2))


def test_the_command_writes_a_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.dumps({"package": "p", "path": "a.py", "text": TEXT}) + "\n"
    (tmp_path / "train-00.jsonl").write_text(row)
    (tmp_path / "heldout.jsonl").write_text(row)
    out = tmp_path / "made" / "tokenizer.json"
    assert main(["--text", str(tmp_path), "--out", str(out), "--vocabulary", "300"]) == 0
    assert "bytes per token held out" in capsys.readouterr().out
    assert Tokenizer.from_file(str(out)).get_vocab_size() == 300


def test_the_command_says_what_to_run_when_there_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--text", str(tmp_path), "--out", str(tmp_path / "t.json")]) == 1
    assert "run models.corpus first" in capsys.readouterr().err
