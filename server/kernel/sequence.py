"""A sequence in the kernel's buffers: its counts and rings, and the way from and to a `SequenceState`.

A prompt is processed by `server.model`; its state is taken over before the first launch. What launches made of it
goes back before the sequence is kept for later prompts (checkpoints, the prefix cache).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from server.kernel.arithmetic import multiply_add
from server.kernel.buffers import COUNTS, MAX_ROWS, RING
from server.model.config import ModelConfig
from server.model.state import KeyValueCache, SequenceState

Buffers = dict[str, Tensor]


def ring_slots(positions: Iterable[int]) -> Tensor:
    """Where the rows of these positions lie in a ring (rows before a sequence's start are zeros)."""
    return torch.tensor([position % RING for position in positions], dtype=torch.int64)


def count(at: Buffers, name: str) -> int:
    """One of the `COUNTS`."""
    return int(at["counts"][COUNTS.index(name)])


def set_counts(at: Buffers, **counts: int) -> None:
    for name, value in counts.items():
        at["counts"][COUNTS.index(name)] = value


@dataclass(frozen=True)
class Behind:
    """Rows that the MTP cache of a sequence lacks: give them to `HybridModel.mtp_fill`, if there are any."""

    ids: list[int]
    hidden: Tensor
    """[len(ids), E]: the trunk's hidden before each of them."""


@torch.inference_mode()
def take_over(at: Buffers, config: ModelConfig, state: SequenceState, token: int) -> None:
    """Begin launches behind a processed prompt: `token` is the newest one, sampled but not processed.

    Raises ValueError when the context is longer than the buffers' caches, or the MTP cache isn't up to the trunk.
    """
    length = state.length
    if state.mtp is not None and state.mtp_length != length:
        raise ValueError(f"the MTP cache holds {state.mtp_length} of {length} tokens; fill it first")
    recurrent = 0
    caches = iter(state.attention)
    for i, is_recurrent in enumerate(config.recurrent):
        if is_recurrent:
            at[f"blk.{i}.memory"][:] = state.memory[recurrent].transpose(1, 2)
            ring, window = at[f"blk.{i}.conv"], state.conv[recurrent]
            ring.zero_()
            ring[ring_slots(range(length - window.shape[0], length))] = window.to(ring)
            recurrent += 1
        else:
            _take_cache(at, i, next(caches), length)
    if state.mtp is not None:
        _take_cache(at, config.layers, state.mtp, length)
    at["hidden"][0] = state.last_hidden
    at["accepted"][0] = token
    set_counts(at, length=length, fold=0, behind=1, external=0)


def _take_cache(at: Buffers, i: int, cache: KeyValueCache, length: int) -> None:
    for name, rows in (("k", cache.keys), ("v", cache.values)):
        room = at[f"blk.{i}.{name}"]
        if length > room.shape[1]:
            raise ValueError(f"{length} tokens don't fit into keys and values for {room.shape[1]} positions")
        room[:, :length] = rows[:, :length]


@torch.inference_mode()
def hand_back(at: Buffers, config: ModelConfig, state: SequenceState, tokens: Sequence[int]) -> Behind:
    """Bring `state`, taken over before, up to what launches have kept. `tokens`: all that the trunk has processed.

    The memories get the rows that are still to be folded; the buffers stay as they are.
    Raises ValueError when `tokens` aren't as many as the buffers hold, or don't begin with the state's.
    """
    length, fold, behind = (count(at, name) for name in ("length", "fold", "behind"))
    known = state.length
    if len(tokens) != length or list(tokens[:known]) != state.tokens:
        raise ValueError(f"{len(tokens)} tokens for a sequence of {length} that began with {known} of its own")
    recurrent = 0
    caches = iter(state.attention)
    for i, is_recurrent in enumerate(config.recurrent):
        if is_recurrent:
            memory = folded_memory(at, i, range(length - fold, length))
            state.memory[recurrent] = memory.transpose(1, 2).to(state.memory)
            window = ring_slots(range(length - config.conv_kernel + 1, length))
            state.conv[recurrent] = at[f"blk.{i}.conv"][window].to(state.conv[recurrent])
            recurrent += 1
        else:
            _give_cache(at, i, next(caches), known, length)
    ready = length - behind + 1  # the newest token's row is one of those behind, but not one of the trunk's
    if state.mtp is not None:
        _give_cache(at, config.layers, state.mtp, known, ready)
        state.mtp_length = ready
    state.tokens = list(tokens)
    state.last_hidden = at["hidden"][behind - 1].to(state.last_hidden)
    state.window = None
    missing = list(tokens[ready:]) if state.mtp is not None else []
    return Behind(missing, at["hidden"][: len(missing)].to(state.last_hidden))


def folded_memory(at: Buffers, i: int, positions: Iterable[int]) -> Tensor:
    """The memory of layer i after the rows at `positions`, [value heads, value, key]: the very operations that
    computed these rows."""
    memory: Tensor = at[f"blk.{i}.memory"]
    for slot in ring_slots(positions).tolist():
        key, delta, decay = (at[f"blk.{i}.{name}"][slot] for name in ("keys", "deltas", "decays"))
        keys = key.repeat(memory.shape[0] // key.shape[0], 1)
        memory = multiply_add(delta[:, :, None], keys[:, None, :], memory * decay[:, None, None])
    return memory


def _give_cache(at: Buffers, i: int, cache: KeyValueCache, known: int, length: int) -> None:
    """Positions known .. length - 1: the state has the earlier ones, perhaps in a wider type."""
    if known < length:
        keys, values = (at[f"blk.{i}.{name}"][:, known:length].transpose(0, 1) for name in "kv")
        cache.write(known, keys.to(cache.keys), values.to(cache.values))


def set_aside(at: Buffers) -> Buffers:
    """A copy of all that the next launch needs of the sequence, so that another one can have the buffers meanwhile."""
    length = count(at, "length")
    kept = {name: x for name, x in at.items() if name.startswith("blk.") or name in ("counts", "accepted", "hidden")}
    return {name: _used(name, x, length).clone() for name, x in kept.items()}


def bring_back(at: Buffers, kept: Buffers) -> None:
    """Go on with a sequence that was `set_aside`, as if nothing had been in between."""
    for name, x in kept.items():
        _used(name, at[name], x.shape[1] if x.dim() > 1 else 0).copy_(x)


def _used(name: str, x: Tensor, length: int) -> Tensor:
    """Of keys and values only the first `length` positions count."""
    return x[:, :length] if name.endswith((".k", ".v")) else x


def roll_back(at: Buffers, keep: int) -> None:
    """Keep only the first `keep` ≥ 1 rows of the last launch: an answer ended there.

    Raises ValueError when that launch kept fewer.
    """
    fold = count(at, "fold")
    if not 1 <= keep <= fold:
        raise ValueError(f"can't keep {keep} rows: the last launch kept {fold}")
    set_counts(at, length=count(at, "length") - fold + keep, fold=keep, behind=keep)


def settle(at: Buffers, tokens: Sequence[int], rows: int) -> None:
    """Take the host's choice for the device's: the `tokens` sampled from the last launch's logits, 1 to `rows` (those
    it verified), each but the last a draft that came true.

    Raises ValueError for more of them.
    """
    if not 1 <= len(tokens) <= min(rows, MAX_ROWS):
        raise ValueError(f"{len(tokens)} tokens from a launch of {rows} rows")
    before = count(at, "length") - count(at, "fold")
    at["accepted"][: len(tokens)] = torch.tensor(list(tokens), device=at["accepted"].device)
    set_counts(at, length=before + len(tokens), fold=len(tokens), behind=len(tokens))
