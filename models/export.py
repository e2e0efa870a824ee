"""Writes the trained weights as a model file: ``python -P -m models.export --weights W --tokenizer T --out FILE``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from models.inputs import TOKENIZER, TRAIN, require
from models.network import Dimensions, Weights, exported
from models.tokenizer_file import tokenizer_metadata
from server.gguf.types import TensorType
from server.gguf.writer import MetadataValue, NewTensor, write_model_file

NAME = "Draftline Python 56M"
CONTEXT_LENGTH = 4096  # the window it was trained in
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

TypeChoice = Callable[[str, torch.Tensor], TensorType]
"""Which type a tensor is stored in, by its name and weights."""


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


def export(
    weights: Weights,
    tokenizer: Path,
    out: Path,
    dims: Dimensions | None = None,
    choose: TypeChoice = mixed_type,
) -> None:
    """Write ``weights`` (in training form, of shape ``dims``) as a model file.

    The vocabulary of ``tokenizer`` (a HF ``tokenizer.json``) must fill the embedding. Value heads equal key heads, so
    nothing is permuted. Raises the errors of ``write_model_file``, and ValueError for a tokenizer of another size.
    """
    dims = dims or Dimensions()
    metadata = model_metadata(dims) | tokenizer_metadata(tokenizer)
    metadata["tokenizer.chat_template"] = CHAT_TEMPLATE.read_text(encoding="utf-8")
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    if len(tokens) != dims.vocab:
        raise ValueError(f"{tokenizer} has {len(tokens)} tokens and the embedding {dims.vocab} rows; they must agree")
    tensors = {name: NewTensor.quantised(w.float(), choose(name, w)) for name, w in exported(weights).items()}
    write_model_file(out, metadata, tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="weights.pt of models.train")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of models.train_tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wide", action="store_true", help="BF16 instead of the quantised mix")
    args = parser.parse_args()
    require("export", [(args.weights, TRAIN), (args.tokenizer, TOKENIZER)])
    weights = torch.load(args.weights, map_location="cpu")
    export(weights, args.tokenizer, args.out, choose=wide_type if args.wide else mixed_type)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
