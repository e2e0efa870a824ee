"""A model as the plan sees it: its dimensions, and for every tensor the type its bytes are streamed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from server.gguf.reader import ModelFile
from server.gguf.types import TensorType, block_size, row_bytes
from server.kernel.errors import UnsupportedByKernel
from server.model.config import ModelConfig
from server.synth.mixes import Mix, as_published, mix_types
from server.synth.presets import Preset

STREAMED = (
    TensorType.F32,
    TensorType.F16,
    TensorType.BF16,
    TensorType.Q8_0,
    TensorType.Q4_K,
    TensorType.Q5_K,
    TensorType.Q6_K,
)
"""Types of matrices that the kernel reads."""
MAX_KERNEL = 4
"""Taps of the convolution at most: the rows before a cycle's own must fit into the ring (see `buffers`)."""


@dataclass(frozen=True)
class KernelModel:
    """Dimensions, tensor types and the size of the draft vocabulary."""

    config: ModelConfig
    types: Mapping[str, TensorType]
    draft_rows: int
    """Rows of the output matrix that the draft head reads; 0 without an MTP head."""

    @classmethod
    def from_file(cls, file: ModelFile, draft_rows: int | None = None) -> KernelModel:
        """The model in a file. `draft_rows`: how many ids the draft head knows (None: the whole vocabulary).

        Raises UnsupportedByKernel, and the errors of `ModelConfig.from_file`.
        """
        types = {name: info.type for name, info in file.tensors.items()}
        return cls.of(ModelConfig.from_file(file), types, draft_rows)

    @classmethod
    def of(cls, config: ModelConfig, types: Mapping[str, TensorType], draft_rows: int | None = None) -> KernelModel:
        """The same from dimensions and types alone. Raises UnsupportedByKernel."""
        rows = 0 if not config.mtp else config.vocab if draft_rows is None else min(draft_rows, config.vocab)
        model = cls(config, MappingProxyType(dict(types)), rows)
        model._check()
        return model

    def _check(self) -> None:
        c = self.config
        if c.conv_kernel > MAX_KERNEL:
            raise UnsupportedByKernel(f"its convolution has {c.conv_kernel} taps, more than {MAX_KERNEL}")
        for name, (_, columns) in self.matrices().items():
            if name not in self.types:
                raise UnsupportedByKernel(f"the tensor {name} is missing")
            type = self.types[name]
            if type not in STREAMED:
                raise UnsupportedByKernel(f"{name} is {type.name}, which it doesn't read")
            if columns % block_size(type)[0]:
                raise UnsupportedByKernel(f"{name} has rows of {columns} weights, not whole {type.name} blocks")

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of every matrix of a cycle: the embedding is looked up, all others are streamed."""
        c = self.config
        found: dict[str, tuple[int, int]] = {"token_embd.weight": (c.vocab, c.hidden)}
        for i, recurrent in enumerate(c.recurrent):
            found |= self._delta_net(i) if recurrent else self._attention(i)
            found |= self._feed_forward(i)
        found[self.output] = (c.vocab, c.hidden)
        if c.mtp:
            block = c.layers
            found |= self._attention(block) | self._feed_forward(block)
            found[f"blk.{block}.nextn.eh_proj.weight"] = (c.hidden, 2 * c.hidden)
            found[self.draft_table] = found[self.draft_output] = (c.vocab, c.hidden)
        return found

    def _delta_net(self, i: int) -> dict[str, tuple[int, int]]:
        c, block = self.config, f"blk.{i}"
        return {
            f"{block}.attn_qkv.weight": (c.conv_channels, c.hidden),
            f"{block}.attn_gate.weight": (c.value_width, c.hidden),
            f"{block}.ssm_beta.weight": (c.value_heads, c.hidden),
            f"{block}.ssm_alpha.weight": (c.value_heads, c.hidden),
            f"{block}.ssm_out.weight": (c.hidden, c.value_width),
        }

    def _attention(self, i: int) -> dict[str, tuple[int, int]]:
        c, block = self.config, f"blk.{i}"
        return {
            f"{block}.attn_q.weight": (2 * c.heads * c.head_dim, c.hidden),
            f"{block}.attn_k.weight": (c.kv_heads * c.head_dim, c.hidden),
            f"{block}.attn_v.weight": (c.kv_heads * c.head_dim, c.hidden),
            f"{block}.attn_output.weight": (c.hidden, c.heads * c.head_dim),
        }

    def _feed_forward(self, i: int) -> dict[str, tuple[int, int]]:
        c, block = self.config, f"blk.{i}"
        return {
            f"{block}.ffn_gate.weight": (c.ffn, c.hidden),
            f"{block}.ffn_up.weight": (c.ffn, c.hidden),
            f"{block}.ffn_down.weight": (c.hidden, c.ffn),
        }

    def vectors(self) -> dict[str, int]:
        """Values of every small tensor of a cycle (norms, gates, the convolution), always float32 in files."""
        c = self.config
        found = {"output_norm.weight": c.hidden}
        for i, recurrent in enumerate(c.recurrent):
            block = f"blk.{i}"
            found |= {f"{block}.attn_norm.weight": c.hidden, f"{block}.post_attention_norm.weight": c.hidden}
            if recurrent:
                found |= {
                    f"{block}.ssm_conv1d.weight": c.conv_channels * c.conv_kernel,
                    f"{block}.ssm_a": c.value_heads,
                    self.time_bias(i): c.value_heads,
                    f"{block}.ssm_norm.weight": c.state_size,
                }
            else:
                found |= {f"{block}.attn_q_norm.weight": c.head_dim, f"{block}.attn_k_norm.weight": c.head_dim}
        if c.mtp:
            block = f"blk.{c.layers}"
            found |= {f"{block}.attn_norm.weight": c.hidden, f"{block}.post_attention_norm.weight": c.hidden}
            found |= {f"{block}.attn_q_norm.weight": c.head_dim, f"{block}.attn_k_norm.weight": c.head_dim}
            found |= {f"{block}.nextn.{name}.weight": c.hidden for name in ("enorm", "hnorm")}
            found[self.draft_norm] = c.hidden
        return found

    @property
    def output(self) -> str:
        """The tensor of the output matrix."""
        return "token_embd.weight" if self.config.tied else "output.weight"

    @property
    def draft_table(self) -> str:
        """The embedding that the MTP block looks tokens up in."""
        return self._own("embed_tokens", "token_embd.weight")

    @property
    def draft_output(self) -> str:
        """The matrix whose frequent rows are the draft head."""
        return self._own("shared_head_head", self.output)

    @property
    def draft_norm(self) -> str:
        """The norm after the MTP block."""
        return self._own("shared_head_norm", "output_norm.weight")

    def _own(self, name: str, fallback: str) -> str:
        own = f"blk.{self.config.layers}.nextn.{name}.weight"
        return own if own in self.types else fallback

    def time_bias(self, i: int) -> str:
        """Some converters write it without the suffix."""
        plain = f"blk.{i}.ssm_dt"
        return plain if plain in self.types else f"{plain}.bias"

    def file_bytes(self, name: str, rows: int | None = None) -> int:
        """Bytes of a matrix in the file, or of `rows` of its rows."""
        all_rows, columns = self.matrices()[name]
        return (all_rows if rows is None else rows) * row_bytes(self.types[name], columns)


def preset_model(preset: Preset, mix: Mix, draft_rows: int | None = None) -> KernelModel:
    """The model of a synthetic preset and type mix. Raises WrongMix, UnsupportedByKernel."""
    preset = as_published(mix, preset)
    names = {field.name for field in fields(ModelConfig)}
    config = ModelConfig(**{name: getattr(preset, name) for name in names})
    return KernelModel.of(config, mix_types(mix, preset), draft_rows)
