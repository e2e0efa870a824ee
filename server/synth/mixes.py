"""Which type each tensor of a file has: the plain mixes, the stock Q4_K_M rule, two published files. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from server.gguf.types import TensorType, row_bytes
from server.synth.errors import UnknownMix, WrongMix
from server.synth.presets import Preset, tensor_shapes

Rule = Callable[[str, int, Preset], TensorType]
"""(part of the tensor's name, as attn_q; its block, -1 outside of blocks; the model) -> type of that matrix."""


@dataclass(frozen=True)
class Mix:
    name: str
    file_type: int
    """`general.file_type`, the format's number for the usual name of such a file."""
    rule: Rule
    preset: str | None = None
    """The only preset the mix is known for."""
    mtp: bool = True
    """False: the published file has no MTP block."""


def more_bits(block: int, blocks: int) -> bool:
    """Whether the stock rule gives this block's value and down projections more bits: the first and the last eighth
    of all blocks (the MTP block counts), and every third one between."""
    return block < blocks // 8 or block >= 7 * blocks // 8 or (block - blocks // 8) % 3 == 2


def stock_q4_k_m(part: str, block: int, preset: Preset) -> TensorType:
    """What llama-quantize does with this architecture; rows are whole blocks of 256."""
    if part == "output" or (part == "token_embd" and preset.tied):
        return TensorType.Q6_K
    if part in ("attn_qkv", "attn_v", "ffn_down") and more_bits(block, preset.blocks):
        return TensorType.Q6_K
    return TensorType.Q4_K


def published_3_6(part: str, block: int, preset: Preset) -> TensorType:
    """unsloth's Qwen3.6-27B-MTP Q4_K_M: 866 tensors, 17,095,778,304 bytes of them."""
    own = {
        "ssm_out": TensorType.Q5_K,
        "ssm_alpha": TensorType.F32,
        "ssm_beta": TensorType.F32,
        "nextn.eh_proj": TensorType.Q8_0,
    }
    return own[part] if part in own else stock_q4_k_m(part, block, preset)


def published_3_5(part: str, block: int, preset: Preset) -> TensorType:
    """unsloth's Qwen3.5-27B Q4_K_M of spring 2026: 851 tensors, no MTP block."""
    own = {
        "attn_qkv": TensorType.Q5_K,
        "ssm_out": TensorType.Q5_K,
        "ssm_alpha": TensorType.Q8_0,
        "ssm_beta": TensorType.Q8_0,
        "attn_v": TensorType.Q4_K if block in (35, 39, 47, 51, 59, 63) else TensorType.Q6_K,
    }
    return own[part] if part in own else stock_q4_k_m(part, block, preset)


MIXES: dict[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix("f16", 1, lambda part, block, preset: TensorType.F16),
        Mix("q8_0", 7, lambda part, block, preset: TensorType.Q8_0),
        Mix("q4_k_m", 15, stock_q4_k_m),
        Mix("qwen3.6-27b-mtp-q4_k_m", 15, published_3_6, "27b"),
        Mix("qwen3.5-27b-q4_k_m", 15, published_3_5, "27b", mtp=False),
    )
}


def find_mix(name: str) -> Mix:
    """In any case of letters, as types are written. Raises UnknownMix, which lists the mixes."""
    try:
        return MIXES[name.lower()]
    except KeyError:
        raise UnknownMix(f"there is no mix {name!r}; mixes: {', '.join(MIXES)}") from None


def as_published(mix: Mix, preset: Preset) -> Preset:
    """`preset` with or without its MTP block, as files of this mix are. Raises WrongMix when it isn't for this one."""
    if mix.preset not in (None, preset.name):
        free = ", ".join(name for name, other in MIXES.items() if other.preset in (None, preset.name))
        raise WrongMix(
            f"the mix {mix.name} describes files of the preset {mix.preset}, not of {preset.name}; "
            f"mixes for {preset.name}: {free}"
        )
    return replace(preset, mtp=preset.mtp and mix.mtp)


def mix_types(mix: Mix, preset: Preset) -> dict[str, TensorType]:
    """The type of every tensor of `as_published(mix, preset)`. Vectors, norms and the convolution are always F32.

    Raises WrongMix.
    """
    preset = as_published(mix, preset)
    return {name: _type(name, shape, mix, preset) for name, shape in tensor_shapes(preset).items()}


def tensor_bytes(preset: Preset, types: dict[str, TensorType]) -> int:
    """Bytes of all tensors together: what a pass over every weight reads."""
    shapes = tensor_shapes(preset)
    return sum(prod(shapes[name][:-1]) * row_bytes(type, shapes[name][-1]) for name, type in types.items())


def part_of(name: str) -> tuple[str, int]:
    """A tensor's part and block: blk.3.attn_q.weight -> (attn_q, 3); -1 outside of blocks."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return stem, -1
    _, block, part = stem.split(".", 2)
    return part, int(block)


def _type(name: str, shape: tuple[int, ...], mix: Mix, preset: Preset) -> TensorType:
    part, block = part_of(name)
    if len(shape) == 1 or part == "ssm_conv1d":
        return TensorType.F32
    return mix.rule(part, block, preset)
