"""What must not take a working engine's place: files that load and answer nothing, or don't load."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tiny_model import Metadata, Tensors, write_tiny_model

from server.gguf.errors import DamagedTensor
from server.gguf.reader import ModelFile
from server.process import spawn
from server.process.check import model_problem
from server.usable import Unusable, check_file

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_good_model_passes(tmp_path: Path) -> None:
    assert await model_problem(write_tiny_model(tmp_path / "m.gguf")) is None


@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "output_norm.weight", "token_embd.weight"])
def test_a_tensor_of_ones_all_over_is_found(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    info = ModelFile.open(path).info(name)
    data = bytearray(path.read_bytes())
    data[info.offset + info.nbytes // 2 : info.offset + info.nbytes] = b"\xff" * (info.nbytes - info.nbytes // 2)
    path.write_bytes(data)
    with pytest.raises(DamagedTensor, match="it holds numbers that are not finite"):
        check_file(path)


@pytest.mark.parametrize("context", [1, 16, 128])
async def test_a_context_too_short_for_an_answer_is_found(tmp_path: Path, context: int) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", context_length=context)
    problem = await model_problem(path)
    assert problem == (
        f"{path}: a context of {context} tokens leaves no room for a prompt and an answer of 96; use a model with a "
        "longer context"
    )


def test_u44_a_vocabulary_that_can_not_fill_in_the_middle_needs_a_chat_template(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        tokens[tokens.index("<|fim_suffix|>")] = "<|another|>"

    def without_chat(metadata: Metadata, tensors: Tensors) -> None:
        edit(metadata, tensors)
        del metadata["tokenizer.chat_template"]

    check_file(write_tiny_model(tmp_path / "m.gguf", edit=edit))
    with pytest.raises(Unusable, match=r"it can.t fill in the middle"):
        check_file(write_tiny_model(tmp_path / "m.gguf", edit=without_chat))


async def test_a_check_that_is_given_up_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "pid"
    program = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(spawn, "engine_command", lambda: [sys.executable, "-c", program])
    checking = asyncio.create_task(model_problem(tmp_path / "m.gguf"))
    while not (started.exists() and started.read_text()):
        await asyncio.sleep(0.01)
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    # Not even one that nobody has waited for.
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
