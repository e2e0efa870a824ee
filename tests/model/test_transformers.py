"""The forward pass equals Qwen3.5 of `transformers`, both in float64, from a prompt in one go and step by step."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny_model import TinyDims

from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from hf_reference import random_reference, write_reference

BOUND = 1e-9

SHAPES = {
    "three value heads a key head, tied": TinyDims(),
    "two value heads a key head, untied": TinyDims(
        hidden=48, ffn=80, value_heads=4, state_size=16, heads=6, kv_heads=3, head_dim=16, rope_dims=8, tied=False
    ),
    "every second layer attends, one kv head": TinyDims(
        layers=4, full_attention_interval=2, heads=3, kv_heads=1, key_heads=1, value_heads=3, state_size=32, seed=5
    ),
    "as many value heads as key heads, odd widths": TinyDims(
        hidden=40, ffn=56, key_heads=3, value_heads=3, state_size=8, heads=2, kv_heads=2, head_dim=24, rope_dims=12
    ),
}


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("name", SHAPES)
@torch.inference_mode()
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    dims = TinyDims(**(vars(SHAPES[name]) | {"vocab": 128, "tokenizer": False, "mtp_layers": 0}))
    reference = random_reference(dims)
    path = write_reference(tmp_path / "model.gguf", dims, reference)
    model = HybridModel.load(ModelFile.open(path), dtype=torch.float64)
    ids = torch.randint(dims.vocab, (150,), generator=torch.Generator().manual_seed(1)).tolist()

    whole = reference(torch.tensor([ids])).logits[0]
    assert whole.abs().max() > 1, "the comparison needs logits of some size"
    at_once = model.logits(model.prefill(ids, model.new_state()))
    assert (at_once - whole).abs().max() < BOUND

    prompt = 101
    first = reference(torch.tensor([ids[:prompt]]), use_cache=True)
    state = model.new_state()
    steps = [model.prefill(ids[:prompt], state)]
    expected, cache = [first.logits[0]], first.past_key_values
    for token in ids[prompt:]:
        out = reference(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        expected.append(out.logits[0])
        steps.append(model.decode([token], state))
    assert (model.logits(torch.cat(steps)) - torch.cat(expected)).abs().max() < BOUND
