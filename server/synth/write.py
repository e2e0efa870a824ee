"""Writes a synthetic model: `draftline synth`. Threads make the tensors a little ahead of the writer that takes them.

Every byte is drawn afresh (SFC64, a generator for each piece of a tensor) rather than cut out of a pool of random
bytes: a core makes 2 to 4 GB of quantised blocks a second, so a few outrun any disk, and no row repeats another.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from server.gguf.types import TensorType
from server.gguf.writer import MetadataValue, NewTensor, write_model_file
from server.synth.blocks import Bytes
from server.synth.errors import UnusableTarget
from server.synth.mixes import Mix, as_published, mix_types
from server.synth.presets import Preset
from server.synth.target import check_target
from server.synth.vocabulary import CHAT_TEMPLATE, vocabulary
from server.synth.weights import RandomTensor, random_tensors

AHEAD_BYTES = 512 << 20
"""Made but not yet written, at most. A larger tensor is made when its turn comes."""
MAX_THREADS = 16


@dataclass(frozen=True)
class Written:
    path: Path
    nbytes: int
    tensor_bytes: int
    tensors: int
    seconds: float


def write_synthetic_model(path: Path, preset: Preset, mix: Mix, seed: int = 0) -> Written:
    """A model file of these dimensions and types with random weights, written at once or not at all.

    Raises WrongMix, UnusableTarget (an existing file is never overwritten), TooLittleSpace.
    """
    types = mix_types(mix, preset)
    metadata = synthetic_metadata(as_published(mix, preset), seed)
    metadata |= {"general.file_type": mix.file_type, "draftline.mix": mix.name}
    return write_random_model(path, as_published(mix, preset), types, metadata, seed)


def write_random_model(
    path: Path, preset: Preset, types: Mapping[str, TensorType], metadata: Mapping[str, MetadataValue], seed: int = 0
) -> Written:
    """The same with any types: `types` names that of every tensor of `tensor_shapes(preset)`."""
    started = time.monotonic()
    tensors = random_tensors(preset, types, seed)
    tensor_bytes = sum(tensor.nbytes for tensor in tensors)
    check_target(path, tensor_bytes)
    threads = ThreadPoolExecutor(min(MAX_THREADS, _processors()), thread_name_prefix="draftline-synth")
    try:
        workshop = _Workshop(tensors, threads)
        made = {tensor.name: NewTensor(tensor.type, tensor.shape, workshop.next) for tensor in tensors}
        write_model_file(path, metadata, made, durable=False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnusableTarget(f"{path} can't be written: {reason}. Name another place, or mend this one.") from None
    finally:
        threads.shutdown(cancel_futures=True)
    return Written(path, path.stat().st_size, tensor_bytes, len(tensors), time.monotonic() - started)


def synthetic_metadata(preset: Preset, seed: int) -> dict[str, MetadataValue]:
    """What a loader needs, and that the weights are random: `general.name` and `draftline.synthetic`."""
    half = preset.rope_dims // 2
    third = (half + 1) // 3
    tokens, types, merges = vocabulary(preset)
    metadata: dict[str, MetadataValue] = {
        "general.architecture": "qwen35",
        "general.type": "model",
        "general.quantization_version": 2,
        "general.name": f"{preset.name}: synthetic, random weights",
        "draftline.synthetic": True,
        "draftline.preset": preset.name,
        "draftline.seed": seed,
        "qwen35.block_count": preset.blocks,
        "qwen35.context_length": preset.context_length,
        "qwen35.embedding_length": preset.hidden,
        "qwen35.feed_forward_length": preset.ffn,
        "qwen35.attention.head_count": preset.heads,
        "qwen35.attention.head_count_kv": preset.kv_heads,
        "qwen35.attention.key_length": preset.head_dim,
        "qwen35.attention.value_length": preset.head_dim,
        "qwen35.attention.layer_norm_rms_epsilon": preset.eps,
        "qwen35.full_attention_interval": preset.full_attention_interval,
        "qwen35.rope.dimension_count": preset.rope_dims,
        "qwen35.rope.dimension_sections": [third, third, half - 2 * third, 0],
        "qwen35.rope.freq_base": preset.rope_base,
        "qwen35.ssm.conv_kernel": preset.conv_kernel,
        "qwen35.ssm.state_size": preset.state_size,
        "qwen35.ssm.group_count": preset.key_heads,
        "qwen35.ssm.time_step_rank": preset.value_heads,
        "qwen35.ssm.inner_size": preset.value_width,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return metadata | ({"qwen35.nextn_predict_layers": 1} if preset.mtp else {})


class _Workshop:
    """Makes the tensors in the order in which they are asked for, some of them before."""

    def __init__(self, tensors: Sequence[RandomTensor], threads: ThreadPoolExecutor) -> None:
        self._waiting = deque(tensors)
        self._started: deque[tuple[Bytes, list[Future[None]]]] = deque()
        self._ahead = 0
        self._threads = threads

    def next(self) -> torch.Tensor:
        """The next tensor's bytes, uint8 [n]."""
        if not self._started:
            self._start()
        data, pieces = self._started.popleft()
        self._ahead -= len(data)
        while self._waiting and self._ahead + self._waiting[0].nbytes <= AHEAD_BYTES:
            self._start()
        for piece in pieces:
            piece.result()
        return torch.from_numpy(data)

    def _start(self) -> None:
        tensor = self._waiting.popleft()
        data = np.empty(tensor.nbytes, dtype=np.uint8)
        self._started.append((data, [self._threads.submit(tensor.fill, i, data) for i in range(tensor.pieces)]))
        self._ahead += len(data)


def _processors() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
