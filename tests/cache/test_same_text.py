"""The shipped model: what was cached before doesn't show in an answer, nor in a bit of the state it starts from."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from prompts.budget import Budget
from prompts.fim import PromptTokens, fim_tokens
from prompts.text import Cursor, SourceFile, SourceText
from prompts.window import PrefixWindow, current_segments
from server.cache import prefix
from server.cache.prefix import CachedSequence, PrefixCache, prefill_step
from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.linear import can_halve, can_pack
from server.model.tokenizer import Tokenizer
from server.models_known import find_model

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
PROMPTS, TOKENS = 30, 40
NEAR_TIE = 1e-3
"""Of two logits; row by row and in chunks, with float16 weights, they differ by less than 1e-4."""


@pytest.fixture(scope="module")
def model() -> HybridModel:
    return HybridModel.load(ModelFile.open(find_model(None)), half_weights=can_halve("cpu", torch.float32))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(ModelFile.open(find_model(None)))


def keystrokes(tokenizer: Tokenizer, seed: int) -> list[PromptTokens]:
    """Prompts of one visit to a file: somewhere above, then a line that is typed, a word or a few letters at a time."""
    rng = random.Random(seed)
    lines = rng.choice(EXAMPLES).read_text(encoding="utf-8").splitlines()
    row = rng.choice([r for r in range(12, len(lines) - 2) if len(lines[r].strip()) > 8])
    indent = len(lines[row]) - len(lines[row].lstrip())
    columns = sorted(rng.sample(range(indent + 1, len(lines[row]) + 1), 4))
    window, prompts = PrefixWindow(), []
    for at, column in ((row - rng.randrange(1, 9), 0), (row - 1, len(lines[row - 1])), *((row, c) for c in columns)):
        text = SourceText((*lines[:at], lines[at][:column], *lines[row + 1 :]))
        budget = Budget(rng.choice((120, 250)))
        segments = current_segments(SourceFile("a.py", text), Cursor(at, column), budget.bytes, window)
        prompts.append(fim_tokens(segments, tokenizer))
    return prompts


def computed(model: HybridModel, cache: PrefixCache, prompt: PromptTokens) -> tuple[CachedSequence, int]:
    """The state of a prompt, and how much of it was reused."""
    sequence, reused = cache.take(prompt.ids, prompt.checkpoints)
    while prefill_step(model, sequence, prompt.ids, prompt.checkpoints):
        pass
    return sequence, reused


def answer(model: HybridModel, sequence: CachedSequence, length: int) -> tuple[list[int], list[float]]:
    """Greedy tokens, and by how much each was ahead of the second best."""
    state, tokens, leads = sequence.state, [], []
    for _ in range(length):
        best = model.logits(state.last_hidden[None])[0].topk(2)
        tokens.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]))
        before = state.last_hidden
        model.decode(tokens[-1:], state)
        model.mtp_fill(tokens[-1:], before[None], state)
    return tokens, leads


def compare(model: HybridModel, tokenizer: Tokenizer, prompts: int) -> tuple[int, int, list[float]]:
    """How many tokens were reused, how many warm states differ from cold ones, and the leads where answers part."""
    reused = different = 0
    leads = []
    with torch.inference_mode():
        for seed in range(prompts):
            cache = PrefixCache(model.new_state, 10**9)
            *earlier, last = keystrokes(tokenizer, seed)
            for prompt in earlier:
                sequence, _ = computed(model, cache, prompt)
                answer(model, sequence, 3)
                cache.give_back(sequence)
            warm, held = computed(model, cache, last)
            cold, _ = computed(model, PrefixCache(model.new_state, 0), last)
            reused += held
            pairs = ((warm.state.memory, cold.state.memory), (warm.state.last_hidden, cold.state.last_hidden))
            if not all(torch.equal(a, b) for a, b in pairs):  # else all that follows is the same
                different += 1
                (first, _), (second, ahead) = answer(model, warm, TOKENS), answer(model, cold, TOKENS)
                leads += [lead for a, b, lead in zip(first, second, ahead, strict=True) if a != b][:1]
    print(f"{prompts} prompts, {reused} tokens reused: {different} states differ, {len(leads)} answers, leads {leads}")
    return reused, different, leads


def test_a_warm_prompt_is_answered_as_a_cold_one(model: HybridModel, tokenizer: Tokenizer) -> None:
    reused, different, leads = compare(model, tokenizer, PROMPTS)
    assert reused > 50 * PROMPTS
    assert all(lead < NEAR_TIE for lead in leads)
    if can_pack(model.device, model.dtype):  # elsewhere a cut between chunks may round otherwise
        assert different == 0


def test_a_planted_reuse_of_whatever_is_held_is_noticed(
    model: HybridModel, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "_fits", lambda chunked, length, begin: True)
    assert compare(model, tokenizer, 8)[1] > 0
