"""From logits to a token: the exact distribution of the sampling parameters, one seeded draw a token.

Order: penalties, temperature, top-k, top-p, min-p. Repetition penalty looks at prompt and answer (as in
transformers); presence and frequency penalties count the answer alone (the OpenAI API: "how often that token
was sampled prior to the current position").
"""

# ruff: noqa: N818 - the names say what is wrong

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from server.request import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would only overflow."""


class InvalidSampling(ValueError):
    """A sampling parameter outside its range; the text names it, its value and the range."""


class NotFiniteLogits(RuntimeError):
    """The model's logits hold a NaN or nothing finite: the sequence's state can't be trusted any more."""

    def __init__(self) -> None:
        super().__init__(
            "the model computed logits that are not numbers; the model file may be damaged: "
            "try another file, and report it if it happens again"
        )


def check_sampling(params: SamplingParams) -> None:
    """Raise InvalidSampling unless every parameter is in its range."""
    finite = math.isfinite
    rules = [
        ("temperature", params.temperature, "≥ 0", finite(params.temperature) and params.temperature >= 0),
        ("top_k", params.top_k, "≥ 0", params.top_k >= 0),
        ("top_p", params.top_p, "in (0, 1]", 0 < params.top_p <= 1),
        ("min_p", params.min_p, "in [0, 1]", 0 <= params.min_p <= 1),
        (
            "repetition_penalty",
            params.repetition_penalty,
            "> 0",
            finite(params.repetition_penalty) and params.repetition_penalty > 0,
        ),
        ("presence_penalty", params.presence_penalty, "a finite number", finite(params.presence_penalty)),
        ("frequency_penalty", params.frequency_penalty, "a finite number", finite(params.frequency_penalty)),
    ]
    for name, value, span, holds in rules:
        if not holds:
            raise InvalidSampling(f"{name} is {value}, but it must be {span}")


def filter_logits(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Temperature, top-k, top-p and min-p on penalised ``logits`` [V].

    Returns token ids [K] and their probabilities [K] (float64, sum 1), most probable first; equal ones by id.
    top-k keeps exactly k tokens; top-p keeps the smallest set of most probable tokens whose mass reaches
    top_p; min-p keeps what has at least min_p times the probability of the most probable token.
    """
    scaled = logits.double() / params.temperature
    vocabulary = scaled.shape[0]
    if 0 < params.top_k < vocabulary:
        threshold = torch.topk(scaled, params.top_k).values[-1]
        ids = torch.nonzero(scaled >= threshold).flatten()
    else:
        ids = torch.arange(vocabulary, device=scaled.device)
    values, order = torch.sort(scaled[ids], descending=True, stable=True)
    ids = ids[order]
    if params.top_k > 0:
        values, ids = values[: params.top_k], ids[: params.top_k]
    probabilities = torch.softmax(values, dim=0)
    keep = len(probabilities)
    if params.top_p < 1:
        mass = torch.cumsum(probabilities, dim=0)
        keep = min(keep, 1 + int((mass < params.top_p).sum()))
    if params.min_p > 0:
        keep = min(keep, max(1, int((probabilities >= params.min_p * probabilities[0]).sum())))
    probabilities = probabilities[:keep]
    return ids[:keep], probabilities / probabilities.sum()


class Sampler:
    """Chooses the tokens of one answer, one after another.

    ``choose`` looks at the logits after everything ``accept``ed so far, so penalties are right for every
    verified row by construction: nothing that was drafted is ever counted. It draws one random number a
    token, whatever was drafted, so a seed gives the same answer at every depth of speculation.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocabulary: int) -> None:
        check_sampling(params)
        self.params = params
        self.greedy = params.temperature < GREEDY_BELOW
        self._random = random.Random(params.seed)
        self._repeats = params.repetition_penalty != 1.0
        self._counts_answer = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self.penalised = self._repeats or self._counts_answer
        self._seen = torch.zeros(vocabulary if self._repeats else 0, dtype=torch.bool)
        if self._repeats and prompt:
            self._seen[torch.tensor(sorted(set(prompt)))] = True
        self._counts = torch.zeros(vocabulary if self._counts_answer else 0, dtype=torch.float32)

    def accept(self, token: int) -> None:
        """``token`` is part of the answer now."""
        if self._repeats:
            self._seen[token] = True
        if self._counts_answer:
            self._counts[token] += 1

    def penalise(self, logits: Tensor) -> Tensor:
        """Logits [V] with the three penalties for the tokens accepted so far."""
        if self._repeats:
            factor = self.params.repetition_penalty
            seen = self._seen.to(logits.device)
            logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
        if self._counts_answer:
            counts = self._counts.to(logits.device)
            logits = logits - self.params.frequency_penalty * counts
            logits = logits - self.params.presence_penalty * (counts > 0).to(logits.dtype)
        return logits

    def distribution(self, logits: Tensor) -> Tensor:
        """The exact probabilities [V] (float64) of the next token, given ``logits`` [V]."""
        logits = self.penalise(logits)
        result = torch.zeros(logits.shape[0], dtype=torch.float64)
        if self.greedy:
            result[_best(logits)] = 1.0
        else:
            ids, probabilities = filter_logits(logits, self.params)
            result[ids] = probabilities
        return result

    def choose(self, logits: Tensor) -> int:
        """The next token, given ``logits`` [V]: the best one (ties: lowest id) or one seeded draw."""
        logits = self.penalise(logits)
        if self.greedy:
            return _best(logits)
        _best(logits)  # only for its check
        ids, probabilities = filter_logits(logits, self.params)
        cumulative = torch.cumsum(probabilities, dim=0)
        point = self._random.random() * float(cumulative[-1])
        index = int(torch.searchsorted(cumulative, point, right=True))
        return int(ids[min(index, len(ids) - 1)])


def _best(logits: Tensor) -> int:
    """The lowest id among the largest logits. Raises NotFiniteLogits."""
    value, index = torch.max(logits, dim=0)
    if not bool(torch.isfinite(value)):
        raise NotFiniteLogits
    return int(index)
