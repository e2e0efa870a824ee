"""Comparisons of sequence states to the bit, and the short stories that the model's tests and planted faults share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from server.model.hybrid import HybridModel
from server.model.state import SequenceState

ModelMaker = Callable[[str, str], HybridModel]
"""The fixture `make_model`: (shape, variant) -> model."""


def tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (count,), generator=generator).tolist()


def decode_in(model: HybridModel, state: SequenceState, ids: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Decode `ids` in decodes of the given sizes, repeated as needed -> hidden [T, E]."""
    parts, done, turn = [], 0, 0
    while done < len(ids):
        count = sizes[turn % len(sizes)]
        parts.append(model.decode(ids[done : done + count], state))
        done += count
        turn += 1
    return torch.cat(parts)


def differences(a: SequenceState, b: SequenceState) -> list[str]:
    """What of two states isn't equal to the bit: names of its parts."""
    found = []
    if a.tokens != b.tokens:
        found.append("tokens")
    if not torch.equal(a.last_hidden, b.last_hidden):
        found.append("last hidden")
    if not torch.equal(a.memory, b.memory):
        found.append("memory")
    if not all(torch.equal(x, y) for x, y in zip(a.conv, b.conv, strict=True)):
        found.append("conv window")
    lengths = [(x, y, a.length) for x, y in zip(a.attention, b.attention, strict=True)]
    if a.length == b.length and not all(
        torch.equal(x.keys[:, :n], y.keys[:, :n]) and torch.equal(x.values[:, :n], y.values[:, :n])
        for x, y, n in lengths
    ):
        found.append("keys and values")
    return found + mtp_differences(a, b, bound=0.0)


def mtp_differences(a: SequenceState, b: SequenceState, bound: float) -> list[str]:
    """What of two MTP caches differs by more than `bound`."""
    if a.mtp_length != b.mtp_length:
        return ["mtp length"]
    if a.mtp is None or b.mtp is None:
        return [] if a.mtp is b.mtp else ["mtp cache"]
    n = a.mtp_length
    pairs = ((a.mtp.keys[:, :n], b.mtp.keys[:, :n]), (a.mtp.values[:, :n], b.mtp.values[:, :n]))
    return [] if all(bool(((x - y).abs() <= bound).all()) for x, y in pairs) else ["mtp keys and values"]


def after_rollback(model: HybridModel, prompt: Sequence[int], rows: Sequence[int], keep: int) -> list[str]:
    """Decode `rows` after a prompt and keep some: what differs from having decoded only those (parts of the state,
    and the next row's hidden)."""
    state, straight = model.new_state(), model.new_state()
    for each in (state, straight):
        model.prefill(prompt, each)
    model.decode(rows, state)
    state.rollback(keep)
    if keep:
        model.decode(rows[:keep], straight)
    found = differences(state, straight)
    if not torch.equal(model.decode([1, 2], state), model.decode([1, 2], straight)):
        found.append("next rows")
    return found


def after_restore(model: HybridModel, prompt: Sequence[int], more: Sequence[int]) -> list[str]:
    """Take a checkpoint after a prompt, go on, come back, go on otherwise: what differs from never having been away."""
    state, straight = model.new_state(), model.new_state()
    model.prefill(prompt, state)
    checkpoint = state.checkpoint()
    model.prefill(more, state)
    model.decode(more[:3], state)
    state.restore(checkpoint)
    model.prefill(prompt, straight)
    found = differences(state, straight)
    other = list(reversed(more))
    if not torch.equal(model.prefill(other, state), model.prefill(other, straight)):
        found.append("rows after it")
    return found


def after_cycle(model: HybridModel, prompt: Sequence[int], bound: float) -> list[str]:
    """A cycle of drafting with the MTP head in which one of three drafts is kept: how its MTP cache differs from one
    that never saw a draft (by more than `bound`), and whether it drafts otherwise afterwards."""
    state, straight = model.new_state(), model.new_state()
    for each in (state, straight):
        model.prefill(prompt, each)
    sampled, length = 7, state.length
    row = model.mtp_rows([sampled], state.last_hidden[None], state)
    for draft in (11, 12):
        row = model.mtp_rows([draft], row, state)
    hidden = model.decode([sampled, 11, 12, 13], state)
    state.rollback(2)
    state.truncate_mtp(length + 1)  # the first row alone came from a hidden of the trunk
    model.mtp_fill([11], hidden[:1], state)

    before = straight.last_hidden
    straight_hidden = model.decode([sampled, 11], straight)
    model.mtp_rows([sampled, 11], torch.stack((before, straight_hidden[0])), straight)
    found = mtp_differences(state, straight, bound)
    drafts = [model.draft_logits(model.mtp_rows([5], each.last_hidden[None], each)) for each in (state, straight)]
    if not bool(((drafts[0] - drafts[1]).abs() <= 100 * bound).all()):
        found.append("next draft")
    return found
