"""Exact verification: which drafted tokens the target model would have produced itself, and one token more.

Row i of the target's logits is the distribution p_i after the last token and i drafts. One token x is chosen
from p_i exactly as without drafts, and the next row counts only if x is the draft. For a draft d proposed
with certainty this *is* rejection sampling: d is taken with probability p_i(d), and given x ≠ d, x has the
law of p_i without d, renormalised. So greedy answers are the same tokens, sampled ones the same distribution,
and with a seed even the same tokens, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from server.speculation.sampling import Sampler


def verify(logits: Tensor, drafts: Sequence[int], sampler: Sampler, end_tokens: Collection[int] = ()) -> list[int]:
    """The answer's next 1 to n + 1 tokens from ``logits`` [1 + n, V] and n ``drafts``.

    All but the last are accepted drafts; the last is the target's own token. Nothing follows an end token.
    The first ``len(result)`` rows of the decode that made the logits are the ones to keep.
    """
    if logits.shape[0] != 1 + len(drafts):
        raise ValueError(f"{len(drafts)} drafts need {1 + len(drafts)} rows of logits, not {logits.shape[0]}")
    tokens: list[int] = []
    for row in range(logits.shape[0]):
        token = sampler.choose(logits[row])
        sampler.accept(token)
        tokens.append(token)
        if row == len(drafts) or token != drafts[row] or token in end_tokens:
            break
    return tokens
