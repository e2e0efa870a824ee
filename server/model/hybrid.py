"""The forward pass of a dense hybrid model with its MTP head: the reference that everything else is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from server.gguf.reader import ModelFile
from server.model.activations import rms_norm, swiglu
from server.model.attention import Attention
from server.model.config import ModelConfig
from server.model.delta_net import CHUNK, DeltaNet
from server.model.linear import MAX_ROWS, can_halve
from server.model.state import SequenceState, Window
from server.model.weights import AttentionWeights, LayerWeights, Matrices, ModelWeights, MtpWeights, WeightReader

PREFILL_BLOCK, GPU_PREFILL_BLOCK = 512, 4096
"""Tokens computed together in prefill, at most; multiples of CHUNK."""


def draft_ids(vocab: int, rows: int, also: Iterable[int] = ()) -> list[int]:
    """The ids, ascending, that a draft head knows: the first `rows`, and what the vocabulary has of `also`."""
    return sorted({*range(min(rows, vocab)), *(i for i in also if i < vocab)})


class HybridModel:
    """A model in memory. It holds no sequence: states are passed in and advanced.

    Not thread-safe: one thread at a time.
    """

    chunk = CHUNK
    """A prompt may be given to `prefill` in several calls; where they are cut at multiples of this (counted from
    the start of the sequence), every row has the same bits as in one call (packed float32 on a CPU)."""
    max_rows = MAX_ROWS

    def __init__(self, config: ModelConfig, weights: ModelWeights, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.weights = weights
        self.device = device
        self.dtype = dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.delta_net = DeltaNet(config, device, wide)
        self.attention = Attention(config, device, dtype, wide)
        self._head_ids: list[int] = weights.mtp.head_ids.tolist() if weights.mtp else []

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        file: ModelFile,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        draft_rows: int | None = None,
        draft_also: Iterable[int] = (),
        half_weights: bool = False,
        matrices: Matrices | None = None,
    ) -> HybridModel:
        """Read config and weights. With `draft_rows` the draft head knows only that many first ids (the frequent
        ones: ids are in the order of merges) and `draft_also`, such as the tokens that end a generation.
        `half_weights` rounds matrices to float16 and computes in float32: about twice as fast a decode on a CPU,
        where `linear.can_halve` allows it. `matrices`: where they are made from when they are wanted; then none is
        kept, and rows of a decode are not independent of each other.

        Raises the errors of `ModelConfig.from_file`, and MissingTensor, WrongTensorShape,
        UnsupportedTensorType, DamagedTensor.
        """
        device = torch.device(device)
        if half_weights and not can_halve(device, dtype):
            raise ValueError(f"float16 weights under {dtype} on {device} are not supported here")
        config = ModelConfig.from_file(file)
        ids = None if draft_rows is None else draft_ids(config.vocab, draft_rows, draft_also)
        weights = WeightReader(file, config, device, dtype, half_weights, matrices).read(ids)
        return cls(config, weights, device, dtype)

    def wait(self) -> None:
        """Until the device has computed all that it was asked for; on a CPU it always has.

        Raises RuntimeError when a GPU failed; it can't be used any more in this process then.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def new_state(self) -> SequenceState:
        return SequenceState(self.config, self.device, self.dtype)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], state: SequenceState) -> torch.Tensor:
        """Process prompt tokens in chunks -> hidden [T, E] after the final norm. Fills the MTP cache too.

        A chunk ends at multiples of CHUNK and at the end of the call. Raises ValueError when the MTP cache isn't
        up to the trunk.
        """
        if state.mtp is not None and state.mtp_length != state.length:
            raise ValueError(f"prefill after {state.length} tokens, but the MTP cache holds {state.mtp_length}")
        state.window = None
        parts = []
        done = 0
        block = GPU_PREFILL_BLOCK if self.device.type == "cuda" else PREFILL_BLOCK
        while done < len(ids):
            position = state.length
            count = min(len(ids) - done, block - position % block)
            parts.append(self._prefill_block(ids[done : done + count], state))
            done += count
        if not parts:
            return torch.empty(0, self.config.hidden, device=self.device, dtype=self.dtype)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @torch.inference_mode()
    def decode(self, ids: Sequence[int], state: SequenceState) -> torch.Tensor:
        """Process 1 to MAX_ROWS tokens step by step -> hidden [T, E]. `state.rollback` may take rows back.

        A row's bits depend on the tokens before it, not on how they were cut into decodes. The MTP cache isn't
        touched.
        """
        if not 1 <= len(ids) <= MAX_ROWS:
            raise ValueError(f"decode takes 1 to {MAX_ROWS} tokens, not {len(ids)}")
        state.memory, state.memory_before = state.memory_before, state.memory
        start = state.length
        records = []
        recurrent = attention = 0
        x = self.weights.embed(self._ids(ids))
        for layer in self.weights.layers:
            h = rms_norm(x, layer.mixer_norm, self.config.eps)
            if isinstance(layer.mixer, AttentionWeights):
                x = x + self.attention.rows(h, start, layer.mixer, state.attention[attention])
                attention += 1
            else:
                mixed, record = self.delta_net.decode(
                    h,
                    layer.mixer,
                    state.conv[recurrent],
                    state.memory_before[recurrent],
                    state.memory[recurrent],
                )
                state.conv[recurrent] = record.inputs[len(ids) :]
                records.append(record)
                recurrent += 1
                x = x + mixed
            x = self._feed_forward(x, layer)
        hidden = rms_norm(x, self.weights.output_norm, self.config.eps)
        state.window = Window(start, len(ids), hidden, state.last_hidden, records)
        state.tokens.extend(ids)
        state.last_hidden = hidden[-1]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [T, E] -> [T, V]."""
        return self.weights.output(hidden)

    @torch.inference_mode()
    def mtp_rows(self, ids: Sequence[int], previous_hidden: torch.Tensor, state: SequenceState) -> torch.Tensor:
        """Full MTP rows, appended at position `state.mtp_length` -> h' [T, E], after the head's own norm.

        A row pairs a token with the hidden of the token before it (trunk, after the final norm), previous_hidden
        [T, E]; in a chain of drafts it is the h' of the row before.
        """
        mtp = self._mtp(state)
        start = state.mtp_length
        assert state.mtp is not None
        x = self._mtp_inputs(ids, previous_hidden, mtp)
        layer = mtp.layer
        assert isinstance(layer.mixer, AttentionWeights)
        h = rms_norm(x, layer.mixer_norm, self.config.eps)
        x = x + self.attention.rows(h, start, layer.mixer, state.mtp)
        x = self._feed_forward(x, layer)
        state.mtp_length = start + len(ids)
        return rms_norm(x, mtp.output_norm, self.config.eps)

    @torch.inference_mode()
    def mtp_fill(self, ids: Sequence[int], previous_hidden: torch.Tensor, state: SequenceState) -> None:
        """The keys and values of `mtp_rows` alone: all that rows need which nobody drafts from."""
        mtp = self._mtp(state)
        assert state.mtp is not None
        x = self._mtp_inputs(ids, previous_hidden, mtp)
        layer = mtp.layer
        assert isinstance(layer.mixer, AttentionWeights)
        h = rms_norm(x, layer.mixer_norm, self.config.eps)
        keys, values = mtp.keys_values(h).chunk(2, dim=1)
        self.attention.store(keys, values, state.mtp_length, layer.mixer, state.mtp)
        state.mtp_length += len(ids)

    @torch.inference_mode()
    def draft_logits(self, rows: torch.Tensor) -> torch.Tensor:
        """h' [T, E] -> [T, V_draft]: logits over the ids the draft head knows, see `draft_token`."""
        if self.weights.mtp is None:
            raise ValueError("this model has no MTP head")
        return self.weights.mtp.head(rows)

    def draft_token(self, row: int) -> int:
        """The token id of a column of `draft_logits`."""
        return self._head_ids[row]

    def _prefill_block(self, ids: Sequence[int], state: SequenceState) -> torch.Tensor:
        start = state.length
        recurrent = attention = 0
        x = self.weights.embed(self._ids(ids))
        for layer in self.weights.layers:
            h = rms_norm(x, layer.mixer_norm, self.config.eps)
            if isinstance(layer.mixer, AttentionWeights):
                x += self.attention.rows(h, start, layer.mixer, state.attention[attention], prompt=True)
                attention += 1
            else:
                mixed, state.conv[recurrent] = self.delta_net.prefill(
                    h, start, layer.mixer, state.conv[recurrent], state.memory[recurrent]
                )
                recurrent += 1
                x += mixed
            x = self._feed_forward(x, layer)
        hidden = rms_norm(x, self.weights.output_norm, self.config.eps)
        previous = torch.cat((state.last_hidden[None], hidden[:-1]))
        state.tokens.extend(ids)
        state.last_hidden = hidden[-1].clone()
        if state.mtp is not None:
            self.mtp_fill(ids, previous, state)
        return hidden

    def _feed_forward(self, x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        return x + layer.down(swiglu(layer.gate_up(rms_norm(x, layer.ffn_norm, self.config.eps))))

    def _mtp(self, state: SequenceState) -> MtpWeights:
        if self.weights.mtp is None or state.mtp is None:
            raise ValueError("this model has no MTP head")
        return self.weights.mtp

    def _mtp_inputs(self, ids: Sequence[int], previous_hidden: torch.Tensor, mtp: MtpWeights) -> torch.Tensor:
        """The embedding half comes first."""
        eps = self.config.eps
        embedded = rms_norm(mtp.embed(self._ids(ids)), mtp.embedding_norm, eps)
        return mtp.project(torch.cat((embedded, rms_norm(previous_hidden, mtp.hidden_norm, eps)), dim=1))

    def _ids(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self.device)
