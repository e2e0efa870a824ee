"""Qwen3.5 of `transformers` computing in float64 throughout, and its weights written as a GGUF file."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tiny_model import TinyDims, tiny_metadata, write_file
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

_WIDE_NAME = "transformers.models.qwen3_5.modeling_qwen3_5_wide"


class _Widened(SourceFileLoader):
    """Loads a module with its casts to float32 turned into casts to float64."""

    def get_data(self, path: str) -> bytes:
        source = super().get_data(path)
        if not path.endswith(".py"):
            raise OSError("no byte code: the source is changed")
        for narrow, wide in (
            (b"torch.float32", b"torch.float64"),
            (b"dtype=torch.float)", b"dtype=torch.float64)"),
            (b".float()", b".double()"),
        ):
            source = source.replace(narrow, wide)
        return source


def wide_module() -> ModuleType:
    """The model's module in float64; the installed one stays as it is."""
    if _WIDE_NAME not in sys.modules:
        loader = _Widened(_WIDE_NAME, str(modeling_qwen3_5.__file__))
        spec = importlib.util.spec_from_loader(_WIDE_NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_WIDE_NAME] = module
        loader.exec_module(module)
    return sys.modules[_WIDE_NAME]


def random_reference(dims: TinyDims) -> Any:
    """A model with random weights that float32 holds exactly in the file's form (norms as 1 + w)."""
    config = Qwen3_5TextConfig(
        vocab_size=dims.vocab,
        hidden_size=dims.hidden,
        intermediate_size=dims.ffn,
        num_hidden_layers=dims.layers,
        num_attention_heads=dims.heads,
        num_key_value_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        rms_norm_eps=float(np.float32(1e-6)),
        linear_conv_kernel_dim=dims.conv_kernel,
        linear_key_head_dim=dims.state_size,
        linear_value_head_dim=dims.state_size,
        linear_num_key_heads=dims.key_heads,
        linear_num_value_heads=dims.value_heads,
        layer_types=[
            "full_attention" if (i + 1) % dims.full_attention_interval == 0 else "linear_attention"
            for i in range(dims.layers)
        ],
        tie_word_embeddings=dims.tied,
        max_position_embeddings=dims.context_length,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": dims.rope_dims / dims.head_dim,
            "mrope_section": tiny_metadata(dims)["qwen35.rope.dimension_sections"][:3],
            "mrope_interleaved": True,
        },
    )
    config._attn_implementation = "eager"
    model = wide_module().Qwen3_5ForCausalLM(config).double().eval()
    generator = torch.Generator().manual_seed(dims.seed)

    def normal(shape: torch.Size, scale: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = parameter.shape
            if name.endswith("linear_attn.norm.weight"):
                value = torch.rand(shape, generator=generator) + 0.5
            elif name.endswith("norm.weight"):
                value = (torch.rand(shape, generator=generator) + 0.5).double() - 1
            elif name.endswith("A_log"):
                value = (torch.rand(shape, generator=generator) * 1.5 + 0.05).double().log()
            elif name.endswith("dt_bias"):
                value = torch.rand(shape, generator=generator) * 3.5 - 3
            elif name.endswith("conv1d.weight"):
                value = normal(shape, 0.75)
            elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
                value = normal(shape, 5 / dims.hidden**0.5)
            else:
                value = normal(shape, 2 / shape[-1] ** 0.5)
            parameter.copy_(value)
    return model


def write_reference(path: Path, dims: TinyDims, model: Any) -> Path:
    """Convert to the tensors of a GGUF file: value heads tiled, norms + 1, decay = -exp(A_log)."""
    weights = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    repeat = dims.value_heads // dims.key_heads
    # file head t is reference head (t mod key heads) · repeat + t div key heads
    order = [(t % dims.key_heads) * repeat + t // dims.key_heads for t in range(dims.value_heads)]
    width = 2 * dims.key_heads * dims.state_size

    def tile(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        heads = x.unflatten(dim, (dims.value_heads, -1))
        return heads.index_select(dim, torch.tensor(order)).flatten(dim, dim + 1)

    def tile_values(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[:width], tile(x[width:])))

    out = {"token_embd.weight": weights["embed_tokens.weight"], "output_norm.weight": weights["norm.weight"] + 1}
    if not dims.tied:
        out["output.weight"] = weights["lm_head.weight"]
    for i in range(dims.layers):
        hf, block = f"layers.{i}.", f"blk.{i}."
        out[f"{block}attn_norm.weight"] = weights[f"{hf}input_layernorm.weight"] + 1
        out[f"{block}post_attention_norm.weight"] = weights[f"{hf}post_attention_layernorm.weight"] + 1
        for part in ("gate", "up", "down"):
            out[f"{block}ffn_{part}.weight"] = weights[f"{hf}mlp.{part}_proj.weight"]
        if (i + 1) % dims.full_attention_interval == 0:
            for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                out[f"{block}attn_{ours}.weight"] = weights[f"{hf}self_attn.{theirs}_proj.weight"]
            for part in ("q", "k"):
                out[f"{block}attn_{part}_norm.weight"] = weights[f"{hf}self_attn.{part}_norm.weight"] + 1
            continue
        net = f"{hf}linear_attn."
        out[f"{block}attn_qkv.weight"] = tile_values(weights[f"{net}in_proj_qkv.weight"])
        out[f"{block}attn_gate.weight"] = tile(weights[f"{net}in_proj_z.weight"])
        out[f"{block}ssm_beta.weight"] = tile(weights[f"{net}in_proj_b.weight"])
        out[f"{block}ssm_alpha.weight"] = tile(weights[f"{net}in_proj_a.weight"])
        out[f"{block}ssm_conv1d.weight"] = tile_values(weights[f"{net}conv1d.weight"].squeeze(1))
        out[f"{block}ssm_a"] = tile(-weights[f"{net}A_log"].exp())
        out[f"{block}ssm_dt.bias"] = tile(weights[f"{net}dt_bias"])
        out[f"{block}ssm_norm.weight"] = weights[f"{net}norm.weight"]
        out[f"{block}ssm_out.weight"] = tile(weights[f"{net}out_proj.weight"], dim=1)
    tensors = {name: value.float().numpy() for name, value in out.items()}
    lost = {name for name, value in out.items() if np.abs(tensors[name] - value.numpy()).max() > 1e-15}
    assert not lost, f"float32 doesn't hold {lost}"
    return write_file(path, tiny_metadata(dims), tensors)
