"""Writes small random model files of the target architecture, for tests that need a real file only.

Everything a loader could get wrong is exercised on purpose: norm weights are not 1, value heads outnumber key
heads, rotary dimensions are fewer than head dimensions, and there are an MTP block and a byte-level BPE
vocabulary with the special tokens of the real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Metadata = dict[str, Any]
"""Key to value: bool, int, float, str, or a list of them. Integers become u32, lists of integers i32."""
Tensors = dict[str, np.ndarray]
"""Tensor name to float32 array, shapes in torch order (output rows first)."""

MERGES = (
    ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("e", "r"), ("i", "n"), ("r", "e"), ("o", "n"), ("s", "e"), ("d", "e"),
    ("de", "f"), ("re", "t"), ("ret", "u"), ("r", "n"), ("retu", "rn"), ("Ġ", "="),
    ("l", "f"), ("se", "lf"), ("Ġ", "in"),
    ("(", ")"), ("()", ":"), (":", "Ċ"), ("Ċ", "ĠĠĠĠ"), ("in", "t"), ("p", "r"), ("pr", "int"),
)  # fmt: skip

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip

CHAT_TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyDims:
    """Dimensions of a tiny model; the defaults make a file of well under a megabyte."""

    hidden: int = 64
    ffn: int = 96
    layers: int = 4
    full_attention_interval: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rope_dims: int = 8
    key_heads: int = 2
    value_heads: int = 6
    state_size: int = 16
    conv_kernel: int = 4
    mtp_layers: int = 1
    vocab: int | None = None
    """Rows of the embedding; None: as many as the vocabulary has, padded to a multiple of 32."""
    tied: bool = True
    tokenizer: bool = True
    """False: `tokenizer.ggml.model` is "none", and `vocab` must be given."""
    context_length: int = 4096
    seed: int = 0


def vocabulary(rows: int | None = None) -> tuple[list[str], list[int]]:
    """Tokens and their GGUF types: 256 byte symbols in GPT-2 order, merges, special tokens, padding rows."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    symbols = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    tokens = symbols + [a + b for a, b in MERGES]
    types = [int(gguf.TokenType.NORMAL)] * len(tokens)
    for token in SPECIAL_TOKENS:
        tokens.append(token)
        control = token.startswith("<|")
        types.append(int(gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED))
    rows = rows if rows is not None else -(-len(tokens) // 32) * 32
    padding = rows - len(tokens)
    if padding < 0:
        raise ValueError(f"a vocabulary with special tokens needs at least {len(tokens)} rows, not {rows}")
    tokens += [f"[PAD{i}]" for i in range(padding)]
    types += [int(gguf.TokenType.UNUSED)] * padding
    return tokens, types


def tiny_metadata(dims: TinyDims) -> Metadata:
    """Metadata as most files have it: scalar head counts, `full_attention_interval`, four rope sections."""
    half = dims.rope_dims // 2
    second, third = (half + 1) // 3, half // 3
    meta: Metadata = {
        "general.architecture": "qwen35",
        "general.name": "tiny random hybrid",
        "qwen35.block_count": dims.layers + dims.mtp_layers,
        "qwen35.context_length": dims.context_length,
        "qwen35.embedding_length": dims.hidden,
        "qwen35.feed_forward_length": dims.ffn,
        "qwen35.attention.head_count": dims.heads,
        "qwen35.attention.head_count_kv": dims.kv_heads,
        "qwen35.attention.key_length": dims.head_dim,
        "qwen35.attention.value_length": dims.head_dim,
        "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen35.full_attention_interval": dims.full_attention_interval,
        "qwen35.rope.dimension_count": dims.rope_dims,
        "qwen35.rope.dimension_sections": [half - second - third, second, third, 0],
        "qwen35.rope.freq_base": 1e7,
        "qwen35.ssm.conv_kernel": dims.conv_kernel,
        "qwen35.ssm.state_size": dims.state_size,
        "qwen35.ssm.group_count": dims.key_heads,
        "qwen35.ssm.time_step_rank": dims.value_heads,
        "qwen35.ssm.inner_size": dims.value_heads * dims.state_size,
    }
    if dims.mtp_layers:
        meta["qwen35.nextn_predict_layers"] = dims.mtp_layers
    if not dims.tokenizer:
        meta["tokenizer.ggml.model"] = "none"
        return meta
    tokens, types = vocabulary(dims.vocab)
    return meta | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in MERGES],
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_tensors(dims: TinyDims) -> Tensors:
    """Random weights; matrices keep the scale of what passes through them, logits have a scale of about 5."""
    rng = np.random.default_rng(dims.seed)
    out: Tensors = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        out[name] = (rng.standard_normal((rows, columns)) * scale / math.sqrt(columns)).astype(np.float32)

    def norm(name: str, size: int) -> None:
        out[name] = rng.uniform(0.5, 1.5, size).astype(np.float32)

    def feed_forward(block: str) -> None:
        norm(f"{block}.post_attention_norm.weight", dims.hidden)
        matrix(f"{block}.ffn_gate.weight", dims.ffn, dims.hidden)
        matrix(f"{block}.ffn_up.weight", dims.ffn, dims.hidden)
        matrix(f"{block}.ffn_down.weight", dims.hidden, dims.ffn, 3.0)

    def attention(block: str) -> None:
        norm(f"{block}.attn_norm.weight", dims.hidden)
        matrix(f"{block}.attn_q.weight", dims.heads * 2 * dims.head_dim, dims.hidden)
        matrix(f"{block}.attn_k.weight", dims.kv_heads * dims.head_dim, dims.hidden)
        matrix(f"{block}.attn_v.weight", dims.kv_heads * dims.head_dim, dims.hidden)
        matrix(f"{block}.attn_output.weight", dims.hidden, dims.heads * dims.head_dim, 3.0)
        norm(f"{block}.attn_q_norm.weight", dims.head_dim)
        norm(f"{block}.attn_k_norm.weight", dims.head_dim)

    def delta_net(block: str) -> None:
        inner = dims.value_heads * dims.state_size
        channels = 2 * dims.key_heads * dims.state_size + inner
        norm(f"{block}.attn_norm.weight", dims.hidden)
        matrix(f"{block}.attn_qkv.weight", channels, dims.hidden)
        matrix(f"{block}.attn_gate.weight", inner, dims.hidden)
        matrix(f"{block}.ssm_beta.weight", dims.value_heads, dims.hidden)
        matrix(f"{block}.ssm_alpha.weight", dims.value_heads, dims.hidden)
        matrix(f"{block}.ssm_conv1d.weight", channels, dims.conv_kernel, 1.5)
        out[f"{block}.ssm_a"] = -rng.uniform(0.05, 1.5, dims.value_heads).astype(np.float32)
        out[f"{block}.ssm_dt.bias"] = rng.uniform(-3.0, 0.5, dims.value_heads).astype(np.float32)
        norm(f"{block}.ssm_norm.weight", dims.state_size)
        matrix(f"{block}.ssm_out.weight", dims.hidden, inner, 3.0)

    vocab = dims.vocab if not dims.tokenizer else len(vocabulary(dims.vocab)[0])
    if vocab is None:
        raise ValueError("without a tokenizer, give vocab=")
    matrix("token_embd.weight", vocab, dims.hidden, 5.0)
    for i in range(dims.layers):
        (attention if (i + 1) % dims.full_attention_interval == 0 else delta_net)(f"blk.{i}")
        feed_forward(f"blk.{i}")
    norm("output_norm.weight", dims.hidden)
    if not dims.tied:
        matrix("output.weight", vocab, dims.hidden, 5.0)
    for i in range(dims.layers, dims.layers + dims.mtp_layers):
        attention(f"blk.{i}")
        feed_forward(f"blk.{i}")
        matrix(f"blk.{i}.nextn.eh_proj.weight", dims.hidden, 2 * dims.hidden)
        norm(f"blk.{i}.nextn.enorm.weight", dims.hidden)
        norm(f"blk.{i}.nextn.hnorm.weight", dims.hidden)
        norm(f"blk.{i}.nextn.shared_head_norm.weight", dims.hidden)
    return out


def add_metadata(writer: gguf.GGUFWriter, metadata: Metadata) -> None:
    """All but the architecture, which the writer has already."""
    for key, value in metadata.items():
        if key != "general.architecture":
            kind, items = _value_type(value)
            writer.add_key_value(key, value, kind, items)


def write_file(path: Path, metadata: Metadata, tensors: Tensors) -> Path:
    """Writes a GGUF of float32 tensors with the `gguf` package, independent of the code under test."""
    writer = gguf.GGUFWriter(str(path), metadata.get("general.architecture", "qwen35"))
    add_metadata(writer, metadata)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_model(path: Path | str, *, edit: Callable[[Metadata, Tensors], None] | None = None, **dims: Any) -> Path:
    """Writes a random model file and returns its path.

    `dims` are fields of `TinyDims`. `edit` may change metadata and tensors in place before they are written,
    to make the variants and faults a loader must meet.
    """
    chosen = replace(TinyDims(), **dims)
    metadata, tensors = tiny_metadata(chosen), tiny_tensors(chosen)
    if edit is not None:
        edit(metadata, tensors)
    return write_file(Path(path), metadata, tensors)


def seldom_end(metadata: Metadata, tensors: Tensors) -> None:
    """An `edit`: special tokens get a logit of 0, never the best, but there at high temperatures."""
    for token, text in enumerate(metadata["tokenizer.ggml.tokens"]):
        if text.startswith(("<|", "[PAD")):
            tensors["token_embd.weight"][token] = 0


def _value_type(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    types = gguf.GGUFValueType
    if isinstance(value, list):
        first = value[0]
        if isinstance(first, bool):
            return types.ARRAY, types.BOOL
        if isinstance(first, int):
            return types.ARRAY, types.INT32
        return types.ARRAY, types.STRING if isinstance(first, str) else types.FLOAT32
    if isinstance(value, bool):
        return types.BOOL, None
    if isinstance(value, int):
        return types.UINT32, None
    return (types.STRING if isinstance(value, str) else types.FLOAT32), None
