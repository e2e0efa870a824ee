"""Dimensions of the dense Qwen3.5 sizes, and the tensors that a model of such dimensions has. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from server.synth.errors import UnknownPreset

SPECIAL_TOKENS = 33
"""Ids between the ordinary tokens and the padding: `<|endoftext|>` and those after it."""

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape in torch order, in the order of the file."""


@dataclass(frozen=True)
class Preset:
    """The dimensions of one model, under the names that `ModelConfig` gives them. The defaults hold for every size."""

    name: str
    hidden: int
    ffn: int
    layers: int
    """Trunk layers: the MTP block isn't one."""
    heads: int
    kv_heads: int
    value_heads: int
    tied: bool
    key_heads: int = 16
    vocab: int = 248_320
    padding: int = 243
    """The last rows of the vocabulary, which no text uses."""
    mtp: bool = True
    head_dim: int = 256
    state_size: int = 128
    rope_dims: int = 64
    rope_base: float = 1e7
    eps: float = 1e-6
    conv_kernel: int = 4
    full_attention_interval: int = 4
    context_length: int = 262_144

    @property
    def blocks(self) -> int:
        """`qwen35.block_count`: trunk layers and the MTP block."""
        return self.layers + self.mtp

    @property
    def recurrent(self) -> tuple[bool, ...]:
        """One entry a trunk layer: True is a Gated DeltaNet layer, False full attention."""
        return tuple((i + 1) % self.full_attention_interval != 0 for i in range(self.layers))

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state_size

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state_size

    @property
    def conv_channels(self) -> int:
        """q, k and v of a Gated DeltaNet layer."""
        return 2 * self.key_width + self.value_width

    @property
    def ordinary_tokens(self) -> int:
        """Ids below the first special token."""
        return self.vocab - self.padding - SPECIAL_TOKENS


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("tiny", 256, 768, 4, 12, 2, 6, tied=False, key_heads=2, vocab=1024, padding=31),
        Preset("0.8b", 1024, 3584, 24, 8, 2, 16, tied=True),
        Preset("2b", 2048, 6144, 24, 8, 2, 16, tied=True),
        Preset("4b", 2560, 9216, 32, 16, 4, 32, tied=True),
        Preset("9b", 4096, 12288, 32, 16, 4, 32, tied=False),
        Preset("27b", 5120, 17408, 64, 24, 4, 48, tied=False),
    )
}
"""tiny has the 27B's ratios (3 value heads a key head, 6 query heads a kv head) and runs anywhere."""


def find_preset(name: str) -> Preset:
    """In any case of letters, as sizes are written. Raises UnknownPreset, which lists the presets."""
    try:
        return PRESETS[name.lower()]
    except KeyError:
        raise UnknownPreset(f"there is no preset {name!r}; presets: {', '.join(PRESETS)}") from None


def scaled_down(preset: Preset, layers: int = 4, hidden: int = 512) -> Preset:
    """A small model with the ratios of `preset`: value heads a key head, query heads a kv head, ffn over hidden (to
    whole blocks of 256), tied or untied. Two key heads, two kv heads and a vocabulary of 2048."""
    return replace(
        preset,
        name=f"{preset.name}-scaled-down",
        hidden=hidden,
        ffn=round(preset.ffn / preset.hidden * hidden / 256) * 256,
        layers=layers,
        heads=2 * preset.heads // preset.kv_heads,
        kv_heads=2,
        key_heads=2,
        value_heads=2 * preset.value_heads // preset.key_heads,
        vocab=2048,
        padding=31,
    )


def tensor_shapes(preset: Preset) -> Shapes:
    """Every tensor of the model, in the order of the file."""
    return dict(_tensors(preset))


def weight_count(preset: Preset) -> int:
    return sum(map(prod, tensor_shapes(preset).values()))


def _tensors(p: Preset) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (p.vocab, p.hidden)
    for i, recurrent in enumerate(p.recurrent):
        yield from _delta_net(p, f"blk.{i}") if recurrent else _attention(p, f"blk.{i}")
        yield from _feed_forward(p, f"blk.{i}")
    if p.mtp:
        block = f"blk.{p.layers}"
        yield from _attention(p, block)
        yield from _feed_forward(p, block)
        yield f"{block}.nextn.eh_proj.weight", (p.hidden, 2 * p.hidden)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield f"{block}.nextn.{name}.weight", (p.hidden,)
    yield "output_norm.weight", (p.hidden,)
    if not p.tied:
        yield "output.weight", (p.vocab, p.hidden)


def _delta_net(p: Preset, block: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{block}.attn_norm.weight", (p.hidden,)
    yield f"{block}.attn_qkv.weight", (p.conv_channels, p.hidden)
    yield f"{block}.attn_gate.weight", (p.value_width, p.hidden)
    yield f"{block}.ssm_beta.weight", (p.value_heads, p.hidden)
    yield f"{block}.ssm_alpha.weight", (p.value_heads, p.hidden)
    yield f"{block}.ssm_conv1d.weight", (p.conv_channels, p.conv_kernel)
    yield f"{block}.ssm_a", (p.value_heads,)
    yield f"{block}.ssm_dt.bias", (p.value_heads,)
    yield f"{block}.ssm_norm.weight", (p.state_size,)
    yield f"{block}.ssm_out.weight", (p.hidden, p.value_width)


def _attention(p: Preset, block: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{block}.attn_norm.weight", (p.hidden,)
    yield f"{block}.attn_q.weight", (p.heads * 2 * p.head_dim, p.hidden)
    yield f"{block}.attn_k.weight", (p.kv_heads * p.head_dim, p.hidden)
    yield f"{block}.attn_v.weight", (p.kv_heads * p.head_dim, p.hidden)
    yield f"{block}.attn_q_norm.weight", (p.head_dim,)
    yield f"{block}.attn_k_norm.weight", (p.head_dim,)
    yield f"{block}.attn_output.weight", (p.hidden, p.heads * p.head_dim)


def _feed_forward(p: Preset, block: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{block}.post_attention_norm.weight", (p.hidden,)
    yield f"{block}.ffn_gate.weight", (p.ffn, p.hidden)
    yield f"{block}.ffn_up.weight", (p.ffn, p.hidden)
    yield f"{block}.ffn_down.weight", (p.hidden, p.ffn)
