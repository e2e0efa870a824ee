"""The state of one sequence: keys and values, recurrent states, and what is needed to take decoded rows back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from server.model.config import ModelConfig

KEY_BLOCK = 256
"""Keys and values are stored, and attended to, in blocks of this many positions."""


class KeyValueCache:
    """Keys and values of one attention layer, [kv heads, capacity, head dim] each, zeros where nothing is stored.

    Rows are overwritten in place; which of them count is the sequence's business.
    """

    def __init__(self, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        self.keys = torch.zeros(kv_heads, 0, head_dim, device=device, dtype=dtype)
        self.values = self.keys.clone()

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows [T, kv heads, head dim] at positions start .. start + T - 1."""
        end = start + keys.shape[0]
        self.reserve(end)
        self.keys[:, start:end] = keys.transpose(0, 1)
        self.values[:, start:end] = values.transpose(0, 1)

    def reserve(self, needed: int) -> None:
        """Have room for so many positions. It grows by half at least, so that copying stays a fraction of writing."""
        if needed <= self.capacity:
            return
        capacity = -(-max(needed, self.capacity * 3 // 2) // KEY_BLOCK) * KEY_BLOCK
        for name in ("keys", "values"):
            old: torch.Tensor = getattr(self, name)
            new = old.new_zeros(old.shape[0], capacity, old.shape[2])
            new[:, : old.shape[1]] = old
            setattr(self, name, new)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(eq=False)
class Rows:
    """Keys and values of a sequence at positions start .. start + T - 1, in memory of their own. Nobody changes them:
    any number of sequences that begin alike can be made from the same ones.

    far: they lie in the host's memory, and not on the device that computes.
    """

    start: int
    stored: torch.Tensor
    """[attention layers, the MTP block's last, 2 (keys, values), kv heads, T, head dim]."""
    far: bool = False

    def send_away(self) -> None:
        """To the host's memory. Whoever holds them goes on as before."""
        self.stored, self.far = _on_host(self.stored), True

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    def split(self, count: int) -> tuple[Rows, Rows]:
        """The first `count` positions and the others, each in memory of its own: one may be dropped."""
        first, second = self.stored[:, :, :, :count], self.stored[:, :, :, count:]
        return Rows(self.start, first.clone(), self.far), Rows(self.start + count, second.clone(), self.far)


@dataclass(eq=False)
class Checkpoint:
    """What can't be cut back: the recurrent states after a number of tokens. Keys and values stay in the sequence.
    Nobody changes it. far: it lies in the host's memory, and not on the device that computes."""

    tokens: tuple[int, ...]
    last_hidden: torch.Tensor
    memory: torch.Tensor
    conv: torch.Tensor
    far: bool = False

    def send_away(self) -> None:
        """To the host's memory. Whoever holds it goes on as before."""
        self.memory, self.conv, self.last_hidden = map(_on_host, (self.memory, self.conv, self.last_hidden))
        self.far = True

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.conv.nbytes + self.last_hidden.nbytes + 8 * len(self.tokens)


@dataclass
class DecodedLayer:
    """What one Gated DeltaNet layer did in a decode of T rows: enough to repeat any first part of it."""

    inputs: torch.Tensor
    """[kernel - 1 + T, channels]: the rows before the convolution, the window before the decode first."""
    keys: torch.Tensor
    """[T, value heads, D]."""
    deltas: torch.Tensor
    """[T, value heads, D]: what each row added to the memory is key ⊗ delta."""
    decays: torch.Tensor
    """[T, value heads]: factors of the memory."""


@dataclass
class Window:
    """The last decode: rows first .. first + rows - 1, of which any first part may be kept."""

    first: int
    rows: int
    hidden: torch.Tensor
    hidden_before: torch.Tensor
    layers: list[DecodedLayer]


class SequenceState:
    """One sequence in a model's hands. Made by `HybridModel.new_state`, advanced by the model.

    For the recurrent layers it holds two copies of the memory matrices: after the last decode and before it. A
    decode turns them round, so that taking rows back costs nothing until it happens.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.tokens: list[int] = []
        self.last_hidden = torch.zeros(config.hidden, device=device, dtype=dtype)
        self.mtp_length = 0
        self.kernel = config.conv_kernel

        def cache() -> KeyValueCache:
            return KeyValueCache(config.kv_heads, config.head_dim, device, dtype)

        self.attention = [cache() for recurrent in config.recurrent if not recurrent]
        self.mtp = cache() if config.mtp else None
        recurrent = sum(config.recurrent)
        size = config.state_size
        self.memory = torch.zeros(recurrent, config.value_heads, size, size, device=device, dtype=wide)
        """[recurrent layers, value heads, key dim, value dim]."""
        self.memory_before = torch.zeros_like(self.memory)
        rows = torch.zeros(recurrent, self.kernel - 1, config.conv_channels, device=device, dtype=wide)
        self.conv = list(rows.unbind(0))
        """For each recurrent layer its last rows before the convolution, [kernel - 1, channels], oldest first."""
        self.window: Window | None = None

    @property
    def length(self) -> int:
        """Tokens that the trunk has processed."""
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        recurrent = self.memory.nbytes + self.memory_before.nbytes + sum(rows.nbytes for rows in self.conv)
        return sum(cache.nbytes for cache in self._caches) + recurrent

    @property
    def _caches(self) -> list[KeyValueCache]:
        return self.attention if self.mtp is None else [*self.attention, self.mtp]

    @torch.inference_mode()
    def rows(self, start: int, end: int) -> Rows:
        """A copy of the keys and values at positions start .. end - 1.

        Raises ValueError where not all of them belong to tokens of the sequence, in the MTP cache too.
        """
        held = self.length if self.mtp is None else min(self.length, self.mtp_length)
        if not 0 <= start < end <= held:
            raise ValueError(f"there are no rows {start} to {end}: the sequence holds {held}")
        pairs = [torch.stack((cache.keys[:, start:end], cache.values[:, start:end])) for cache in self._caches]
        return Rows(start, torch.stack(pairs) if pairs else self.memory.new_zeros(0, 2, 0, end - start, 0))

    def could_hold(self, rows: Rows, count: int, checkpoint: Checkpoint | None) -> bool:
        """Whether rows at `count` positions, and a checkpoint, have the shapes and types of this model's."""
        kv_heads, _, head_dim = self._caches[0].keys.shape if self._caches else (0, 0, 0)
        row_type = self._caches[0].keys.dtype if self._caches else self.memory.dtype
        wanted = [(row_type, (len(self._caches), 2, kv_heads, count, head_dim))]
        found = [(rows.stored.dtype, tuple(rows.stored.shape))]
        if checkpoint is not None:
            own = self.checkpoint()
            for ours, theirs in ((own, wanted), (checkpoint, found)):
                theirs += [(x.dtype, tuple(x.shape)) for x in (ours.last_hidden, ours.memory, ours.conv)]
        return wanted == found

    @torch.inference_mode()
    def adopt(self, checkpoint: Checkpoint, parts: Sequence[Rows]) -> None:
        """Become the sequence that a checkpoint was made of. parts: its rows, but for those that this state's caches
        hold already, from the first on."""
        for cache in self._caches:
            cache.reserve(checkpoint.length)
        for part in parts:
            for cache, (keys, values) in zip(self._caches, part.stored, strict=True):
                cache.write(part.start, keys.transpose(0, 1), values.transpose(0, 1))
        self.tokens = list(checkpoint.tokens)
        self.mtp_length = 0 if self.mtp is None else checkpoint.length
        self.restore(checkpoint)

    def truncate_mtp(self, length: int) -> None:
        """Keep the first `length` rows of the MTP cache."""
        if not 0 <= length <= self.mtp_length:
            raise ValueError(f"can't cut an MTP cache of {self.mtp_length} rows to {length}")
        self.mtp_length = length

    @torch.inference_mode()
    def rollback(self, keep: int) -> None:
        """Take back all but the first `keep` rows of the last decode, leaving what decoding only those would have
        left, to the bit. The MTP cache isn't touched: see `truncate_mtp`.

        Raises ValueError when there is no decode to take back (or fewer rows of it).
        """
        window = self.window
        if window is None or not 0 <= keep <= window.rows:
            have = 0 if window is None else window.rows
            raise ValueError(f"can't keep {keep} decoded rows: there are {have}")
        if keep == window.rows:
            return
        self._rewind_memory(window, keep)
        self._rewind_conv(window, keep)
        del self.tokens[window.first + keep :]
        self.last_hidden = window.hidden[keep - 1] if keep else window.hidden_before
        window.rows = keep

    def _rewind_memory(self, window: Window, keep: int) -> None:
        self._replay(window, keep, self.memory)

    def _rewind_conv(self, window: Window, keep: int) -> None:
        self.conv = self._conv_after(window, keep)

    def _replay(self, window: Window, keep: int, memory: torch.Tensor) -> None:
        """Repeat the kept updates from the memory before the decode, in all layers at once; the result in `memory`."""
        memory.copy_(self.memory_before)
        if not self.conv:
            return
        for row in range(keep):
            memory.mul_(torch.stack([layer.decays[row] for layer in window.layers])[:, :, None, None])
            keys = torch.stack([layer.keys[row] for layer in window.layers])
            deltas = torch.stack([layer.deltas[row] for layer in window.layers])
            memory.addcmul_(keys[:, :, :, None], deltas[:, :, None, :])

    def _conv_after(self, window: Window, keep: int) -> list[torch.Tensor]:
        return [layer.inputs[keep : keep + self.kernel - 1] for layer in window.layers]

    @torch.inference_mode()
    def checkpoint(self, length: int | None = None) -> Checkpoint:
        """A copy of what can't be cut back: as it is, or as it was after `length` tokens, in the last decode.

        Raises ValueError when the last decode didn't pass that length.
        """
        if length is None or length == self.length:
            memory, conv, last_hidden = self.memory.clone(), self.conv, self.last_hidden
        else:
            window = self.window
            keep = 0 if window is None else length - window.first
            if window is None or not 1 <= keep < window.rows:
                raise ValueError(f"the last decode doesn't lead past {length} of the sequence's {self.length} tokens")
            memory, conv = torch.empty_like(self.memory), self._conv_after(window, keep)
            self._replay(window, keep, memory)
            last_hidden = window.hidden[keep - 1]
        stacked = torch.stack(conv) if conv else memory.new_zeros(0)
        return Checkpoint(tuple(self.tokens[:length]), last_hidden.clone(), memory, stacked)

    @torch.inference_mode()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint of this sequence: later keys and values are dropped, MTP rows too.

        Raises ValueError when this sequence doesn't begin with the checkpoint's tokens.
        """
        length = checkpoint.length
        if self.tokens[:length] != list(checkpoint.tokens):
            raise ValueError(f"the checkpoint of {length} tokens belongs to other tokens than the sequence holds")
        del self.tokens[length:]
        self.mtp_length = min(self.mtp_length, length)
        self.last_hidden = checkpoint.last_hidden.to(self.memory.device)
        self.memory.copy_(checkpoint.memory)
        self.conv = list(checkpoint.conv.to(self.memory.device).unbind(0)) if self.conv else []
        self.window = None


def _on_host(x: torch.Tensor) -> torch.Tensor:
    """A copy in page-locked memory, which a GPU reads and writes fastest; of what is on the host, the thing itself."""
    return x if x.device.type == "cpu" else torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x)
