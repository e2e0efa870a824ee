"""Reads sampling parameters, under the names the OpenAI API and llama.cpp gave them, with their ranges."""

from __future__ import annotations

from server.api.fields import Fields
from server.request import SamplingParams

MAX_TOKENS = 1_000_000
"""More than any context holds: the context ends a generation before."""


def read_sampling(fields: Fields, *, temperature: float) -> SamplingParams:
    """temperature: what counts when the request names none. Raises ApiError for a value out of range."""
    top_k = fields.integer("top_k", 0, -1, 1_000_000)
    return SamplingParams(
        temperature=fields.number("temperature", temperature, 0, 100),
        top_k=max(top_k, 0),  # some clients write -1 for "off"
        top_p=fields.number("top_p", 1.0, 0, 1),
        min_p=fields.number("min_p", 0.0, 0, 1),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100),
        presence_penalty=fields.number("presence_penalty", 0.0, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2, 2),
        seed=fields.integer("seed", None, -(2**63), 2**64 - 1),
    )
