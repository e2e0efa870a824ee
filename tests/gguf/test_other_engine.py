"""Another engine (llama.cpp, through the optional package xllamacpp) loads our files and runs them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from golden_files import FOLDER
from tokenizers.pre_tokenizers import ByteLevel

from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.gguf.writer import NewTensor, write_model_file

# In a process of its own: that engine aborts on files it dislikes.
GENERATE = """
import json, sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = 256
parameters.cpuparams.n_threads = 1
server = xllamacpp.Server(parameters)
answer = server.handle_completions({"prompt": "abc", "n_predict": 5, "temperature": 0, "ignore_eos": True})
print("\\n" + json.dumps(answer["usage"]))
"""


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
@pytest.mark.parametrize("type", [TensorType.F16, TensorType.Q8_0, TensorType.Q4_K, TensorType.Q5_K, TensorType.Q6_K])
def test_llama_cpp_runs_a_file_that_we_quantised_and_wrote(tmp_path: Path, type: TensorType) -> None:
    source = ModelFile.open(FOLDER / "hybrid-b-Q4_K_M.gguf")
    metadata = dict(source.metadata) | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": sorted(ByteLevel.alphabet()),
        "tokenizer.ggml.token_type": [1] * 256,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 255,
        "tokenizer.ggml.add_bos_token": False,
    }
    tensors = {
        name: NewTensor.quantised(source.tensor(name), TensorType.F32 if info.type == TensorType.F32 else type)
        for name, info in source.tensors.items()
    }
    path = tmp_path / "ours.gguf"
    write_model_file(path, metadata, tensors)
    ran = subprocess.run([sys.executable, "-c", GENERATE, str(path)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout.splitlines()[-1])["completion_tokens"] == 5
