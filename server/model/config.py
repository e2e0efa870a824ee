"""Dimensions of a dense hybrid model (Gated DeltaNet + gated attention), read from a model file's metadata."""

from __future__ import annotations

from dataclasses import dataclass

from server.gguf.errors import WrongArchitecture, WrongMetadata
from server.gguf.reader import ModelFile

ARCHITECTURE = "qwen35"


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of the trunk and of its MTP block, which is one more full-attention layer behind the trunk."""

    hidden: int
    ffn: int
    vocab: int
    context_length: int
    recurrent: tuple[bool, ...]
    """One entry a trunk layer: True is a Gated DeltaNet layer, False full attention."""
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_base: float
    eps: float
    key_heads: int
    value_heads: int
    state_size: int
    """Width of a linear-attention head, for keys and for values."""
    conv_kernel: int
    mtp: bool
    tied: bool
    """The output matrix is the embedding."""

    @property
    def layers(self) -> int:
        """Trunk layers: the MTP block isn't one."""
        return len(self.recurrent)

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state_size

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state_size

    @property
    def conv_channels(self) -> int:
        """q, k and v of a Gated DeltaNet layer pass through the convolution."""
        return 2 * self.key_width + self.value_width

    @classmethod
    def from_file(cls, file: ModelFile) -> ModelConfig:
        """Read the metadata, whichever converter wrote it.

        `block_count` includes the MTP block. `attention.recurrent_layers` wins over `full_attention_interval`.
        Head counts may be scalars or one entry a block (0 key/value heads on recurrent layers). The sections of the
        rotary embedding, three or four, don't matter for text: all of them hold the same position.

        Raises WrongArchitecture, MissingMetadata, WrongMetadata, MissingTensor (the embedding).
        """
        architecture = file.value("general.architecture", str)
        if architecture != ARCHITECTURE:
            raise WrongArchitecture(file.path, f"its architecture is {architecture!r}, not {ARCHITECTURE!r}")
        read = _Reader(file)
        blocks = read.size("block_count")
        if blocks > len(file.tensors):  # every block has tensors of its own
            raise read.wrong("block_count", f"is {blocks}, but the file has {len(file.tensors)} tensors")
        mtp_blocks = read.size("nextn_predict_layers", default=0)
        if mtp_blocks > 1:
            raise read.wrong("nextn_predict_layers", f"is {mtp_blocks}; models with more than one are not known")
        layers = blocks - mtp_blocks
        if layers < 1:
            raise read.wrong("block_count", f"is {blocks}, which leaves no layer before the MTP block")
        recurrent = read.recurrent(layers)
        attention = [i for i in range(layers) if not recurrent[i]] + list(range(layers, blocks))
        state_size = read.size("ssm.state_size")
        value_heads = read.size("ssm.time_step_rank")
        config = cls(
            hidden=read.size("embedding_length"),
            ffn=read.uniform("feed_forward_length", range(blocks), blocks),
            vocab=file.info("token_embd.weight").shape[0],
            context_length=read.size("context_length"),
            recurrent=recurrent,
            heads=read.uniform("attention.head_count", attention, blocks),
            kv_heads=read.uniform("attention.head_count_kv", attention, blocks),
            head_dim=read.size("attention.key_length"),
            rope_dims=read.size("rope.dimension_count"),
            rope_base=read.positive("rope.freq_base"),
            eps=read.positive("attention.layer_norm_rms_epsilon"),
            key_heads=read.size("ssm.group_count"),
            value_heads=value_heads,
            state_size=state_size,
            conv_kernel=read.size("ssm.conv_kernel"),
            mtp=mtp_blocks == 1,
            tied="output.weight" not in file.tensors,
        )
        read.check(config)
        return config


class _Reader:
    """Typed access to the keys of the architecture, with errors that name them."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file

    def wrong(self, key: str, problem: str) -> WrongMetadata:
        return WrongMetadata(self.file.path, f"{ARCHITECTURE}.{key} {problem}")

    def size(self, key: str, default: int | None = None) -> int:
        """A count: an integer ≥ 1 (or the default)."""
        name = f"{ARCHITECTURE}.{key}"
        found = self.file.value(name, int) if default is None else self.file.value(name, int, default)
        if found < (1 if default is None else 0):
            raise self.wrong(key, f"is {found}")
        return found

    def positive(self, key: str) -> float:
        found = self.file.value(f"{ARCHITECTURE}.{key}", float)
        if not 0 < found < float("inf"):
            raise self.wrong(key, f"is {found}")
        return found

    def uniform(self, key: str, where: range | list[int], blocks: int) -> int:
        """A count that may be given for each block: the one value it has in the blocks `where`."""
        name = f"{ARCHITECTURE}.{key}"
        if not isinstance(self.file.metadata.get(name), list):
            return self.size(key)
        values = self.file.values(name, int)
        if len(values) not in (blocks, max(where, default=blocks) + 1):
            raise self.wrong(key, f"has {len(values)} entries for {blocks} blocks")
        used = {values[i] for i in where}
        if len(used) != 1 or min(used) < 1:
            raise self.wrong(key, f"must be the same count in every block that uses it, not {sorted(used)}")
        return used.pop()

    def recurrent(self, layers: int) -> tuple[bool, ...]:
        key = f"{ARCHITECTURE}.attention.recurrent_layers"
        flags = self.file.values(key, bool, None)
        if flags is not None:
            if len(flags) < layers:
                raise self.wrong("attention.recurrent_layers", f"has {len(flags)} entries for {layers} layers")
            return tuple(flags[:layers])
        interval = self.size("full_attention_interval", default=4)
        if interval < 1:
            raise self.wrong("full_attention_interval", f"is {interval}")
        return tuple((i + 1) % interval != 0 for i in range(layers))

    def check(self, config: ModelConfig) -> None:
        """What must fit together, and what this forward pass doesn't compute."""
        file = self.file
        if file.value(f"{ARCHITECTURE}.attention.value_length", int, config.head_dim) != config.head_dim:
            raise self.wrong("attention.value_length", f"differs from attention.key_length ({config.head_dim})")
        if config.heads % config.kv_heads:
            raise self.wrong("attention.head_count", f"is {config.heads}, no multiple of {config.kv_heads} KV heads")
        if config.value_heads % config.key_heads:
            raise self.wrong(
                "ssm.time_step_rank", f"is {config.value_heads}, no multiple of {config.key_heads} key heads"
            )
        if file.value(f"{ARCHITECTURE}.ssm.inner_size", int, config.value_width) != config.value_width:
            raise self.wrong("ssm.inner_size", f"is not ssm.time_step_rank x ssm.state_size = {config.value_width}")
        if config.rope_dims % 2 or config.rope_dims > config.head_dim:
            raise self.wrong("rope.dimension_count", f"is {config.rope_dims} for heads of {config.head_dim}")
        if config.conv_kernel < 2:
            raise self.wrong("ssm.conv_kernel", f"is {config.conv_kernel}, less than 2")
        scaling = file.value(f"{ARCHITECTURE}.rope.scaling.type", str, "none")
        if scaling != "none":
            raise self.wrong("rope.scaling.type", f"is {scaling!r}: scaled rotary embeddings are not supported")
        tiled = file.value(f"{ARCHITECTURE}.ssm.v_head_reordered", bool, True)
        if not tiled and config.value_heads != config.key_heads:
            raise self.wrong("ssm.v_head_reordered", "is false: value heads in this order are not supported")
