"""The weights of a model, read once from its file; matrices that share an input become one.

Shapes in torch order (a matrix is [outputs, inputs]). Names of the file's tensors stand next to each use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from server.gguf.reader import ModelFile
from server.model.activations import VECTOR
from server.model.config import ModelConfig
from server.model.damage import check_values, check_zeros
from server.model.linear import Linear


@dataclass(frozen=True)
class DeltaNetWeights:
    """A Gated DeltaNet layer's mixer."""

    inputs: Linear
    """Rows: q, k, v (conv channels), z (value width), b and a (`gate_width` each, padded with zero rows)."""
    conv: torch.Tensor
    """[kernel, channels], oldest tap first."""
    decay: torch.Tensor
    """ssm_a, already -exp(A_log); [gate width], zeros behind the value heads."""
    time_bias: torch.Tensor
    """[gate width], zeros behind the value heads."""
    norm: torch.Tensor
    output: Linear


@dataclass(frozen=True)
class AttentionWeights:
    """A full-attention layer's mixer."""

    inputs: Linear
    """Rows: all queries, all keys, all values, all gates (the file interleaves query and gate head by head)."""
    head_norms: torch.Tensor
    """[heads + kv heads, head dim]: q_norm / sqrt(head dim) for each query head, then k_norm for each key head."""
    output: Linear


@dataclass(frozen=True)
class LayerWeights:
    """A decoder layer: a mixer and a feed-forward part, each behind a norm."""

    mixer_norm: torch.Tensor
    mixer: DeltaNetWeights | AttentionWeights
    ffn_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class MtpWeights:
    """The MTP block: one full-attention layer behind a projection of (embedding, hidden)."""

    embedding: torch.Tensor
    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    project: Linear
    layer: LayerWeights
    keys_values: Linear
    """Only the key and value rows of the layer's `inputs`: all that a prompt's rows need."""
    output_norm: torch.Tensor
    head: Linear
    """The output matrix over `head_ids` alone."""
    head_ids: torch.Tensor
    """int64, ascending."""


@dataclass(frozen=True)
class ModelWeights:
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor
    output: Linear
    mtp: MtpWeights | None


def loaded_bytes(file: ModelFile, half: bool) -> int:
    """About how many bytes the weights of a file take in float32, or with `half` matrices: what `WeightReader` keeps,
    and the plain output matrix, which it holds until the draft head is made of it. Asks the file's header alone."""
    tied = "output.weight" not in file.tensors
    total = 0
    for name, info in file.tensors.items():
        matrix = 2 if half and len(info.shape) > 1 else 4
        if name == "token_embd.weight":
            each = 4 + (matrix if tied else 0)  # its rows are looked up in float32
        elif name == "output.weight":
            each = matrix + 4
        else:
            each = 4 if name.endswith("nextn.embed_tokens.weight") else matrix
        total += each * prod(info.shape)
    return total


def gate_width(config: ModelConfig) -> int:
    """Columns of b and of a: the value heads, padded to whole vectors (see `activations`)."""
    return -(-config.value_heads // VECTOR) * VECTOR


class WeightReader:
    """Builds the weights of one model. On torch's meta device no weight is read: only whether they could be.

    names: the tensors that were asked for, in order.
    Errors: MissingTensor, WrongTensorShape, UnsupportedTensorType, DamagedTensor.
    """

    def __init__(
        self, file: ModelFile, config: ModelConfig, device: torch.device, dtype: torch.dtype, half: bool
    ) -> None:
        """`half`: matrices are stored in float16 (see `linear.Storage`)."""
        self.file = file
        self.config = config
        self.device = device
        self.dtype = dtype
        self.half = half
        self.names: list[str] = []
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        """The type of norms, gates and recurrent states."""

    def read(self, draft_ids: Sequence[int] | None) -> ModelWeights:
        """`draft_ids`: ascending ids that the draft head can propose; None: all of them."""
        c = self.config
        embedding = self._tensor("token_embd.weight", c.vocab, c.hidden).to(self.device, self.dtype)
        output_matrix = (
            embedding if c.tied else self._tensor("output.weight", c.vocab, c.hidden).to(self.device, self.dtype)
        )
        output_norm = self._vector("output_norm.weight", c.hidden)
        output = Linear(output_matrix, self.half)
        layers = tuple(self._layer(i, recurrent) for i, recurrent in enumerate(c.recurrent))
        mtp = self._mtp(embedding, output_matrix, output, output_norm, draft_ids) if c.mtp else None
        return ModelWeights(embedding, layers, output_norm, output, mtp)

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        self.names.append(name)
        if self.device.type == "meta":
            self.file.check(name, shape)
            return torch.empty(shape, device=self.device)
        check_zeros(self.file, name)
        values = self.file.tensor(name, shape)
        check_values(self.file, name, values)
        return values

    def _vector(self, name: str, *shape: int) -> torch.Tensor:
        return self._tensor(name, *shape).to(self.device, self.wide)

    def _linear(self, *parts: torch.Tensor) -> Linear:
        """One matrix from float32 parts that have the same input."""
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Linear(whole.to(self.device, self.dtype), self.half)

    def _layer(self, i: int, recurrent: bool) -> LayerWeights:
        c, block = self.config, f"blk.{i}"
        return LayerWeights(
            mixer_norm=self._vector(f"{block}.attn_norm.weight", c.hidden),
            mixer=self._delta_net(block) if recurrent else self._attention(block),
            ffn_norm=self._vector(f"{block}.post_attention_norm.weight", c.hidden),
            gate_up=self._linear(
                self._tensor(f"{block}.ffn_gate.weight", c.ffn, c.hidden),
                self._tensor(f"{block}.ffn_up.weight", c.ffn, c.hidden),
            ),
            down=self._linear(self._tensor(f"{block}.ffn_down.weight", c.hidden, c.ffn)),
        )

    def _delta_net(self, block: str) -> DeltaNetWeights:
        c, padded = self.config, gate_width(self.config)
        bias = f"{block}.ssm_dt.bias"
        if bias not in self.file.tensors and f"{block}.ssm_dt" in self.file.tensors:
            bias = f"{block}.ssm_dt"  # some converters write it without the suffix

        def pad(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((x, x.new_zeros(padded - x.shape[0], *x.shape[1:])))

        return DeltaNetWeights(
            inputs=self._linear(
                self._tensor(f"{block}.attn_qkv.weight", c.conv_channels, c.hidden),
                self._tensor(f"{block}.attn_gate.weight", c.value_width, c.hidden),
                pad(self._tensor(f"{block}.ssm_beta.weight", c.value_heads, c.hidden)),
                pad(self._tensor(f"{block}.ssm_alpha.weight", c.value_heads, c.hidden)),
            ),
            conv=self._vector(f"{block}.ssm_conv1d.weight", c.conv_channels, c.conv_kernel).t().contiguous(),
            decay=pad(self._vector(f"{block}.ssm_a", c.value_heads)),
            time_bias=pad(self._vector(bias, c.value_heads)),
            norm=self._vector(f"{block}.ssm_norm.weight", c.state_size),
            output=self._linear(self._tensor(f"{block}.ssm_out.weight", c.hidden, c.value_width)),
        )

    def _attention(self, block: str) -> AttentionWeights:
        c = self.config
        queries, gates = (
            self._tensor(f"{block}.attn_q.weight", c.heads * 2 * c.head_dim, c.hidden)
            .view(c.heads, 2, c.head_dim, c.hidden)
            .unbind(1)
        )
        q_norm = self._vector(f"{block}.attn_q_norm.weight", c.head_dim) * c.head_dim**-0.5
        k_norm = self._vector(f"{block}.attn_k_norm.weight", c.head_dim)
        return AttentionWeights(
            inputs=self._linear(
                queries.reshape(-1, c.hidden),
                *self._key_value_matrices(block),
                gates.reshape(-1, c.hidden),
            ),
            head_norms=torch.cat((q_norm.expand(c.heads, -1), k_norm.expand(c.kv_heads, -1))),
            output=self._linear(self._tensor(f"{block}.attn_output.weight", c.hidden, c.heads * c.head_dim)),
        )

    def _key_value_matrices(self, block: str) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        return (
            self._tensor(f"{block}.attn_k.weight", c.kv_heads * c.head_dim, c.hidden),
            self._tensor(f"{block}.attn_v.weight", c.kv_heads * c.head_dim, c.hidden),
        )

    def _mtp(
        self,
        embedding: torch.Tensor,
        output_matrix: torch.Tensor,
        output: Linear,
        output_norm: torch.Tensor,
        draft_ids: Sequence[int] | None,
    ) -> MtpWeights:
        """The optional tensors of its own (embedding, head, output norm) fall back to the trunk's."""
        c, block = self.config, f"blk.{self.config.layers}"
        own = {
            name: f"{block}.nextn.{name}.weight" in self.file.tensors
            for name in ("embed_tokens", "shared_head_head", "shared_head_norm")
        }
        if own["embed_tokens"]:
            embedding = self._tensor(f"{block}.nextn.embed_tokens.weight", c.vocab, c.hidden).to(
                self.device, self.dtype
            )
        if own["shared_head_head"]:
            output_matrix = self._tensor(f"{block}.nextn.shared_head_head.weight", c.vocab, c.hidden).to(
                self.device, self.dtype
            )
        if own["shared_head_norm"]:
            output_norm = self._vector(f"{block}.nextn.shared_head_norm.weight", c.hidden)
        ids = torch.arange(c.vocab) if draft_ids is None else torch.tensor(list(draft_ids), dtype=torch.int64)
        if len(ids) < c.vocab:
            head = Linear(output_matrix[ids.to(self.device)], self.half)
        else:
            head = Linear(output_matrix, self.half) if own["shared_head_head"] else output
        return MtpWeights(
            embedding=embedding,
            embedding_norm=self._vector(f"{block}.nextn.enorm.weight", c.hidden),
            hidden_norm=self._vector(f"{block}.nextn.hnorm.weight", c.hidden),
            project=self._linear(self._tensor(f"{block}.nextn.eh_proj.weight", c.hidden, 2 * c.hidden)),
            layer=self._layer(c.layers, recurrent=False),
            keys_values=self._linear(*self._key_value_matrices(block)),
            output_norm=output_norm,
            head=head,
            head_ids=ids,
        )
