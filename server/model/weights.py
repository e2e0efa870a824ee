"""The weights of a model, read once from its file; matrices that share an input become one.

Shapes in torch order (a matrix is [outputs, inputs]). Names of the file's tensors stand next to each use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch.nn import functional as F

from server.gguf.reader import ModelFile
from server.model.activations import VECTOR
from server.model.config import ModelConfig
from server.model.damage import check_bytes, check_values, check_zeros
from server.model.linear import Linear, RemadeLinear

Product = Linear | RemadeLinear
Embed = Callable[[torch.Tensor], torch.Tensor]
"""ids [T] -> rows [T, E]."""


@dataclass(frozen=True)
class Part:
    """Rows of a linear map: those of a matrix of the file, or, without a name, zeros.

    every: (of so many rows, from this one on, so many), again and again; None: all. draft: of the draft head's rows.
    """

    name: str | None
    rows: int
    every: tuple[int, int, int] | None = None
    draft: bool = False

    @property
    def file_rows(self) -> int:
        """Of the whole matrix."""
        return self.rows if self.every is None else self.rows // self.every[2] * self.every[0]

    def of(self, matrix: torch.Tensor) -> torch.Tensor:
        """Its rows of the whole matrix."""
        if self.every is None:
            return matrix
        period, first, count = self.every
        return matrix.view(-1, period, matrix.shape[1])[:, first : first + count].reshape(self.rows, -1)


class Matrices(Protocol):
    """Matrices of a file that lie elsewhere in another form, and can be made when they are wanted."""

    scratch: torch.Tensor
    """Memory for one of them at a time, in the type of the products."""

    def fill(self, part: Part, first: int, out: torch.Tensor) -> None:
        """Write the part's rows from ``first`` on into out [n, columns]."""

    def rows(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows of an embedding."""


@dataclass(frozen=True)
class DeltaNetWeights:
    """A Gated DeltaNet layer's mixer."""

    inputs: Product
    """Rows: q, k, v (conv channels), z (value width), b and a (`gate_width` each, padded with zero rows)."""
    conv: torch.Tensor
    """[kernel, channels], oldest tap first."""
    decay: torch.Tensor
    """ssm_a, already -exp(A_log); [gate width], zeros behind the value heads."""
    time_bias: torch.Tensor
    """[gate width], zeros behind the value heads."""
    norm: torch.Tensor
    output: Product


@dataclass(frozen=True)
class AttentionWeights:
    """A full-attention layer's mixer."""

    inputs: Product
    """Rows: all queries, all keys, all values, all gates (the file interleaves query and gate head by head)."""
    head_norms: torch.Tensor
    """[heads + kv heads, head dim]: q_norm / sqrt(head dim) for each query head, then k_norm for each key head."""
    output: Product


@dataclass(frozen=True)
class LayerWeights:
    """A decoder layer: a mixer and a feed-forward part, each behind a norm."""

    mixer_norm: torch.Tensor
    mixer: DeltaNetWeights | AttentionWeights
    ffn_norm: torch.Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True)
class MtpWeights:
    """The MTP block: one full-attention layer behind a projection of (embedding, hidden)."""

    embed: Embed
    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    project: Product
    layer: LayerWeights
    keys_values: Product
    """Only the key and value rows of the layer's `inputs`: all that a prompt's rows need."""
    output_norm: torch.Tensor
    head: Product
    """The output matrix over `head_ids` alone."""
    head_ids: torch.Tensor
    """int64, ascending."""


@dataclass(frozen=True)
class ModelWeights:
    embed: Embed
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor
    output: Product
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
        self,
        file: ModelFile,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        half: bool,
        matrices: Matrices | None = None,
    ) -> None:
        """`half`: matrices are stored in float16 (see `linear.Storage`). `matrices`: where they are made from when they
        are wanted, none is kept then."""
        self.matrices = matrices
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
        embedding = self._table("token_embd.weight")
        name = "token_embd.weight" if c.tied else "output.weight"
        matrix = embedding if c.tied else self._table(name)
        output_norm = self._vector("output_norm.weight", c.hidden)
        output = self._whole(name, matrix)
        layers = tuple(self._layer(i, recurrent) for i, recurrent in enumerate(c.recurrent))
        embed = self._embed("token_embd.weight", embedding)
        mtp = self._mtp(embed, (name, matrix), output, output_norm, draft_ids) if c.mtp else None
        return ModelWeights(embed, layers, output_norm, output, mtp)

    def _table(self, name: str) -> torch.Tensor:
        """A matrix with a row for each token."""
        table = self._matrix(name, self.config.vocab, self.config.hidden)
        return table if self.matrices is not None else table.to(self.device, self.dtype)

    def _matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """float32; of those that are made when they are wanted nothing but the shape."""
        if self.matrices is None:
            return self._tensor(name, rows, columns)
        self.names.append(name)
        self.file.check(name, (rows, columns))
        check_zeros(self.file, name)
        check_bytes(self.file, name)
        return torch.empty(rows, columns, device="meta")

    def _embed(self, name: str, table: torch.Tensor) -> Embed:
        if (matrices := self.matrices) is not None:
            return lambda ids: matrices.rows(name, ids)
        return lambda ids: F.embedding(ids, table)

    def _whole(self, name: str, table: torch.Tensor) -> Product:
        if self.matrices is not None:
            return self._remade(table.shape[1], Part(name, len(table)))
        return Linear(table, self.half)

    def _remade(self, columns: int, *parts: Part) -> RemadeLinear:
        matrices = self.matrices
        assert matrices is not None

        def fill(first: int, out: torch.Tensor) -> None:
            if len(parts) == 1:
                return matrices.fill(parts[0], first, out)
            at = 0
            for part in parts:
                matrices.fill(part, 0, out[at : at + part.rows])
                at += part.rows

        return RemadeLinear(sum(part.rows for part in parts), columns, fill, matrices.scratch)

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

    def _linear(self, columns: int, *parts: Part) -> Product:
        """One matrix from parts that have the same input."""
        whole: dict[str, torch.Tensor] = {}
        for part in parts:
            if part.name is not None and part.name not in whole:
                whole[part.name] = self._matrix(part.name, part.file_rows, columns)
        if self.matrices is not None:
            return self._remade(columns, *parts)
        zeros = torch.zeros(0, columns, device=next(iter(whole.values())).device)
        found = [part.of(whole[part.name]) if part.name else zeros.new_zeros(part.rows, columns) for part in parts]
        return Linear((found[0] if len(found) == 1 else torch.cat(found)).to(self.device, self.dtype), self.half)

    def _layer(self, i: int, recurrent: bool) -> LayerWeights:
        c, block = self.config, f"blk.{i}"
        return LayerWeights(
            mixer_norm=self._vector(f"{block}.attn_norm.weight", c.hidden),
            mixer=self._delta_net(block) if recurrent else self._attention(block),
            ffn_norm=self._vector(f"{block}.post_attention_norm.weight", c.hidden),
            gate_up=self._linear(
                c.hidden, Part(f"{block}.ffn_gate.weight", c.ffn), Part(f"{block}.ffn_up.weight", c.ffn)
            ),
            down=self._linear(c.ffn, Part(f"{block}.ffn_down.weight", c.hidden)),
        )

    def _delta_net(self, block: str) -> DeltaNetWeights:
        c, padded = self.config, gate_width(self.config)
        bias = f"{block}.ssm_dt.bias"
        if bias not in self.file.tensors and f"{block}.ssm_dt" in self.file.tensors:
            bias = f"{block}.ssm_dt"  # some converters write it without the suffix

        missing = [Part(None, padded - c.value_heads)] if padded > c.value_heads else []

        def pad(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((x, x.new_zeros(padded - x.shape[0], *x.shape[1:])))

        return DeltaNetWeights(
            inputs=self._linear(
                c.hidden,
                Part(f"{block}.attn_qkv.weight", c.conv_channels),
                Part(f"{block}.attn_gate.weight", c.value_width),
                Part(f"{block}.ssm_beta.weight", c.value_heads),
                *missing,
                Part(f"{block}.ssm_alpha.weight", c.value_heads),
                *missing,
            ),
            conv=self._vector(f"{block}.ssm_conv1d.weight", c.conv_channels, c.conv_kernel).t().contiguous(),
            decay=pad(self._vector(f"{block}.ssm_a", c.value_heads)),
            time_bias=pad(self._vector(bias, c.value_heads)),
            norm=self._vector(f"{block}.ssm_norm.weight", c.state_size),
            output=self._linear(c.value_width, Part(f"{block}.ssm_out.weight", c.hidden)),
        )

    def _attention(self, block: str) -> AttentionWeights:
        c = self.config
        queries, gates = (
            Part(f"{block}.attn_q.weight", c.heads * c.head_dim, every=(2 * c.head_dim, first, c.head_dim))
            for first in (0, c.head_dim)
        )
        q_norm = self._vector(f"{block}.attn_q_norm.weight", c.head_dim) * c.head_dim**-0.5
        k_norm = self._vector(f"{block}.attn_k_norm.weight", c.head_dim)
        return AttentionWeights(
            inputs=self._linear(c.hidden, queries, *self._keys_values(block), gates),
            head_norms=torch.cat((q_norm.expand(c.heads, -1), k_norm.expand(c.kv_heads, -1))),
            output=self._linear(c.heads * c.head_dim, Part(f"{block}.attn_output.weight", c.hidden)),
        )

    def _keys_values(self, block: str) -> tuple[Part, Part]:
        rows = self.config.kv_heads * self.config.head_dim
        return Part(f"{block}.attn_k.weight", rows), Part(f"{block}.attn_v.weight", rows)

    def _mtp(
        self,
        embed: Embed,
        head: tuple[str, torch.Tensor],
        output: Product,
        output_norm: torch.Tensor,
        draft_ids: Sequence[int] | None,
    ) -> MtpWeights:
        """The optional tensors of its own (embedding, head, output norm) fall back to the trunk's.

        head: name and rows of the output matrix.
        """
        c, block = self.config, f"blk.{self.config.layers}"
        names = {
            name: f"{block}.nextn.{name}.weight" for name in ("embed_tokens", "shared_head_head", "shared_head_norm")
        }
        own = {name: whole for name, whole in names.items() if whole in self.file.tensors}
        if name := own.get("embed_tokens"):
            embed = self._embed(name, self._table(name))
        if name := own.get("shared_head_head"):
            head = name, self._table(name)
        if name := own.get("shared_head_norm"):
            output_norm = self._vector(name, c.hidden)
        ids = torch.arange(c.vocab) if draft_ids is None else torch.tensor(list(draft_ids), dtype=torch.int64)
        return MtpWeights(
            embed=embed,
            embedding_norm=self._vector(f"{block}.nextn.enorm.weight", c.hidden),
            hidden_norm=self._vector(f"{block}.nextn.hnorm.weight", c.hidden),
            project=self._linear(2 * c.hidden, Part(f"{block}.nextn.eh_proj.weight", c.hidden)),
            layer=self._layer(c.layers, recurrent=False),
            keys_values=self._linear(c.hidden, *self._keys_values(block)),
            output_norm=output_norm,
            head=self._draft_head(head, ids, None if "shared_head_head" in own else output),
            head_ids=ids,
        )

    def _draft_head(self, matrix: tuple[str, torch.Tensor], ids: torch.Tensor, output: Product | None) -> Product:
        """The rows of these ids. output: the whole matrix as it is there already."""
        name, table = matrix
        if len(ids) == self.config.vocab:
            return output or self._whole(name, table)
        if self.matrices is not None:
            return self._remade(self.config.hidden, Part(name, len(ids), draft=True))
        return Linear(table[ids.to(self.device)], self.half)
