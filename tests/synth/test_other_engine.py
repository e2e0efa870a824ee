"""llama.cpp (through the optional package xllamacpp) loads synthetic files and generates, by our token ids."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.gguf.reader import ModelFile
from server.model.hybrid import HybridModel
from server.model.tokenizer import Tokenizer
from server.synth.mixes import MIXES
from server.synth.presets import PRESETS, Preset
from server.synth.write import write_synthetic_model

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
    pytest.mark.timeout(300),
]

# In a process of its own: that engine aborts on files it dislikes.
GENERATE = """
import json, sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = 256
parameters.cpuparams.n_threads = 1
server = xllamacpp.Server(parameters)
answer = server.handle_completions({"prompt": sys.argv[2], "n_predict": 1, "temperature": 0, "ignore_eos": True})
print("\\n" + json.dumps(answer))
"""
PROMPT = "def bodo(x):\n    return x.zu + dabogi - ze"
WHOLE_VOCABULARY = replace(PRESETS["tiny"], vocab=248_320, padding=243, tied=True)


@pytest.mark.parametrize("mix", ["q4_k_m", "q8_0"])
def test_llama_cpp_loads_a_synthetic_file_and_says_the_same(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "m.gguf"
    answer = answer_by_llama_cpp(path, PRESETS["tiny"], mix)
    file = ModelFile.open(path)
    tokenizer, model = Tokenizer.from_file(file), HybridModel.load(file)
    ids = tokenizer.encode(PROMPT)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    likeliest = model.logits(model.prefill(ids, model.new_state())[-1:])[0].topk(3).indices.tolist()
    # its activations have 8 bits, so near ties may go another way
    assert answer["choices"][0]["text"] in [tokenizer.decode([i]) for i in likeliest]


def test_llama_cpp_loads_the_whole_vocabulary_and_cuts_text_as_we_do(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    answer = answer_by_llama_cpp(path, WHOLE_VOCABULARY, "q4_k_m")
    assert answer["usage"]["prompt_tokens"] == len(Tokenizer.from_file(ModelFile.open(path)).encode(PROMPT))
    assert answer["usage"]["completion_tokens"] == 1


def answer_by_llama_cpp(path: Path, preset: Preset, mix: str) -> dict[str, Any]:
    write_synthetic_model(path, preset, MIXES[mix])
    command = [sys.executable, "-c", GENERATE, str(path), PROMPT]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-2000:]
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answer
