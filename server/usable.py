"""Whether completions with a model file would work: the loader's checks, and what a completion needs besides."""

from __future__ import annotations

from pathlib import Path

from prompts.budget import BudgetKeeper
from prompts.fim import FimSpecials, NoFimTokens
from server.gguf.reader import ModelFile
from server.model.chat_template import ChatTemplate, ChatTemplateError
from server.model.check import check_model
from server.model.tokenizer import Tokenizer

ANSWER_TOKENS = 96
"""What `draftline complete` and the language server ask for, unless a setting says otherwise."""


class Unusable(Exception):  # noqa: N818
    """The model would load and no completion would come of it. str() is one line that says why and what to do."""


def check_file(path: Path) -> None:
    """Raises as `check_usable`, and what opening the file raises."""
    check_usable(ModelFile.open(path))


def check_usable(file: ModelFile) -> bool:
    """False: too large to look for damage. Raises ModelFileError, or Unusable, when no completion would work."""
    whole = check_model(file)
    context = file.value("qwen35.context_length", int, 0)
    keeper = BudgetKeeper()
    keeper.engine(context, 0.0)
    if keeper.budget(ANSWER_TOKENS).tokens < 1:
        raise Unusable(
            f"{file.path}: a context of {context} tokens leaves no room for a prompt and an answer of {ANSWER_TOKENS}; "
            f"use a model with a longer context"
        )
    tokenizer = Tokenizer.from_file(file)
    try:
        FimSpecials.of(tokenizer)
    except NoFimTokens as error:
        try:
            ChatTemplate.from_file(file, tokenizer)
        except ChatTemplateError:
            raise Unusable(f"{file.path}: {error}") from error
    return whole
