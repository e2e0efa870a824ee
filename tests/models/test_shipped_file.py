"""The model file that is shipped is the one the documentation describes."""

from __future__ import annotations

from pathlib import Path

from server.gguf.reader import ModelFile
from server.model.config import ModelConfig
from server.models_known import EMBEDDED, KNOWN_MODELS

PATH = KNOWN_MODELS[EMBEDDED]


def test_it_is_small_enough_to_live_in_the_repository() -> None:
    assert PATH.stat().st_size <= 38_000_000


def test_it_declares_the_trained_context_and_has_a_prediction_head() -> None:
    config = ModelConfig.from_file(ModelFile.open(PATH))
    assert config.context_length == 4096
    assert config.mtp
    assert config.vocab == 16_384


def test_its_chat_template_is_our_own_text() -> None:
    template = ModelFile.open(PATH).value("tokenizer.chat_template", str)
    assert template == (Path(PATH).parent / "chat_template.jinja").read_text(encoding="utf-8")
