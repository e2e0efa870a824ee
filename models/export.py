"""Writes the trained weights as a model file: ``python -P -m models.export --weights W --tokenizer T --out FILE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from models.network import Dimensions, Weights, exported
from server.gguf.types import TensorType
from server.gguf.writer import MetadataValue, NewTensor, write_model_file

NAME = "Draftline Python 56M"
CONTEXT_LENGTH = 4096  # the window it was trained in
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1


def mixed_type(name: str, weight: torch.Tensor) -> TensorType:
    """The shipped mix: 5.4 bits a weight. The embedding (also the output) and the thin gates lose most, the wide
    feed-forward inputs least."""
    if weight.ndim == 1 or name.endswith(("conv1d.weight", "ssm_alpha.weight", "ssm_beta.weight")):
        return TensorType.F32
    if name == "token_embd.weight":
        return TensorType.Q6_K
    return TensorType.Q4_K if name.endswith(("ffn_gate.weight", "ffn_up.weight")) else TensorType.Q5_K


def wide_type(name: str, weight: torch.Tensor) -> TensorType:
    """BF16 throughout: the file to compare a quantised one with."""
    return TensorType.F32 if mixed_type(name, weight) == TensorType.F32 else TensorType.BF16


def tokenizer_metadata(tokenizer: Path) -> dict[str, MetadataValue]:
    """``tokenizer.ggml.*`` from a HF ``tokenizer.json``."""
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    ids: dict[str, int] = dict(content["model"]["vocab"])
    special = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    ids |= special
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"{tokenizer}: the ids are not 0 to {len(tokens) - 1}; train the tokenizer again")
    types = [(CONTROL if t.startswith("<|") else USER_DEFINED) if t in special else NORMAL for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8"),
    }


def model_metadata(dims: Dimensions) -> dict[str, MetadataValue]:
    """``general.*`` and ``qwen35.*``: what a loader needs to rebuild the graph."""
    third = (dims.rotary // 2 + 1) // 3
    return {
        "general.architecture": "qwen35",
        "general.name": NAME,
        "general.license": "apache-2.0",
        "general.languages": ["en"],
        "general.tags": ["code", "python", "fill-in-the-middle"],
        "qwen35.block_count": dims.layers + 1,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.context_length": CONTEXT_LENGTH,
        "qwen35.embedding_length": dims.hidden,
        "qwen35.feed_forward_length": dims.ffn,
        "qwen35.attention.head_count": dims.heads,
        "qwen35.attention.head_count_kv": dims.kv_heads,
        "qwen35.attention.key_length": dims.head_dim,
        "qwen35.attention.value_length": dims.head_dim,
        "qwen35.attention.layer_norm_rms_epsilon": dims.eps,
        "qwen35.full_attention_interval": dims.attention_every,
        "qwen35.rope.dimension_count": dims.rotary,
        "qwen35.rope.dimension_sections": [third, third, dims.rotary // 2 - 2 * third, 0],
        "qwen35.rope.freq_base": dims.rope_base,
        "qwen35.ssm.conv_kernel": dims.conv_kernel,
        "qwen35.ssm.state_size": dims.linear_dim,
        "qwen35.ssm.group_count": dims.linear_heads,
        "qwen35.ssm.time_step_rank": dims.linear_heads,
        "qwen35.ssm.inner_size": dims.linear_heads * dims.linear_dim,
    }


def export(weights: Weights, tokenizer: Path, out: Path, *, wide: bool = False) -> None:
    """Write ``weights`` (in training form) as a model file. Value heads equal key heads, so nothing is permuted."""
    pick = wide_type if wide else mixed_type
    tensors = {name: NewTensor.quantised(w.float(), pick(name, w)) for name, w in exported(weights).items()}
    write_model_file(out, model_metadata(Dimensions()) | tokenizer_metadata(tokenizer), tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="weights.pt of models.train")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of models.train_tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wide", action="store_true", help="BF16 instead of the quantised mix")
    args = parser.parse_args()
    export(torch.load(args.weights, map_location="cpu"), args.tokenizer, args.out, wide=args.wide)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
