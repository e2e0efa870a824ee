"""The kernel's source for a model, an architecture and a number of rows: constants, and the texts behind them."""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import dataclass
from importlib.resources import files

from server.kernel.buffers import BLOCK, attention_parts
from server.kernel.errors import UnsupportedByKernel
from server.kernel.model import STREAMED, KernelModel
from server.kernel.structs import InstructionStruct

TEXTS = (
    "types.cuh",
    "primitives.cuh",
    "shared.cuh",
    "rows.cuh",
    "tiles.cuh",
    "portions.cuh",
    "stream.cuh",
    "multiply.cuh",
    "group.cuh",
    "finish.cuh",
    "delta_rule.cuh",
    "attention_inputs.cuh",
    "attention.cuh",
    "attention_reduce.cuh",
    "cycle.cu",
)
"""In this order they are one translation unit."""
ENTRY = "cycle"
THREADS = 512
"""Of a block; there is one block on each SM."""

SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
"""Shared memory that a block may have, by architecture (compute capability as two digits, 9.0 is 90)."""
FEW_ROWS = 8
"""Rows of the smaller variant of the kernel."""
MATH_WARPS = 12
PARTIAL_FLOATS = 2 * MATH_WARPS * 20
"""Of a row: two slots of each math warp's sums."""
COLLECTED_FLOATS = 2 * 32
"""Of a row: sums that other SMs have of the last group."""
PARKED_FLOATS = 3 * 32 + 1 + 32
"""Of a row, and what all have in common: what there is of the last group before its last portion."""
BARRIER_BYTES = 8 * (4 + 14)
"""Barriers that aren't a stage's; a stage has two."""
INSTRUCTION_BYTES = 2 * (ctypes.sizeof(InstructionStruct) + 16 + 32 * 16 + 16)
"""The instruction at hand and the next one, each with an SM's share, two counts and portions."""


@dataclass(frozen=True)
class Shape:
    """How a block uses its shared memory: a ring of `stages` of `stage_bytes` for weights, `area_bytes` for
    activations."""

    row_tiles: int
    stage_bytes: int
    stages: int
    area_bytes: int


def find_arch(major: int, minor: int) -> int:
    """The architecture whose code a GPU of compute capability major.minor runs. Raises UnsupportedByKernel."""
    fitting = [arch for arch in SHARED_BYTES if arch // 10 == major and arch % 10 <= minor]
    if not fitting:
        known = ", ".join(f"{a // 10}.{a % 10}" for a in sorted(SHARED_BYTES))
        raise UnsupportedByKernel(f"the GPU's compute capability is {major}.{minor}, and it is written for {known}")
    return max(fitting)


def row_tiles(rows: int) -> int:
    """Which variant of the kernel runs a plan of so many rows: 1 for up to 8, 2 for up to 16."""
    return 1 if rows <= FEW_ROWS else 2


def row_slots(tiles: int) -> int:
    """Rows that a variant has room for: so far apart stand scales and sums of 8-bit activations."""
    return FEW_ROWS * tiles


def shape(model: KernelModel, arch: int, row_tiles: int) -> Shape:
    """What fits best into an SM of this architecture.

    Raises UnsupportedByKernel when it has too little memory.
    """
    room = SHARED_BYTES[arch] - _fixed_bytes(model, row_slots(row_tiles))
    for area_bytes, least in AREAS[row_tiles]:
        ring = room - area_bytes
        if ring >= least * (LEAST_STAGE + 16):
            stage_bytes = max(LEAST_STAGE, min(MOST_STAGE, ring // least - 16) // 256 * 256)
            stages = min(ring // (stage_bytes + 16), MOST_STAGES)
            return Shape(row_tiles, stage_bytes, stages, area_bytes)
    raise UnsupportedByKernel(
        f"its rows of {model.config.hidden} need more shared memory than the GPU has ({SHARED_BYTES[arch]} bytes)"
    )


AREAS = {1: ((61440, 4), (36864, 4)), 2: ((102400, 4), (69632, 4), (36864, 4), (28672, 2))}
"""By row tiles: bytes of the area for activations and stages that must find room beside it, the best first."""
MOST_STAGES = 16
LEAST_STAGE, MOST_STAGE = 4352, 28416
"""The largest tile; twelve Q4_K tiles, one for each math warp."""


def _fixed_bytes(model: KernelModel, columns: int) -> int:
    """Of shared memory beside ring and area, for so many rows of activations (see `cuda/shared.cuh`)."""
    c = model.config
    squares = max(2 * c.hidden, c.value_width) // BLOCK
    floats = PARTIAL_FLOATS + max(squares, PARKED_FLOATS) + max(c.value_heads, 2) + COLLECTED_FLOATS
    return 4 * columns * floats + BARRIER_BYTES + INSTRUCTION_BYTES + 80


MOST_HEAD_DIM = 256
MOST_SHARING = 16
"""Query heads of a key head: they are multiplied with it at once."""


def check_dimensions(model: KernelModel) -> None:
    """Raises UnsupportedByKernel for dimensions that the device code isn't written for."""
    c = model.config
    for what, value, unit in (
        ("rows", c.hidden, BLOCK),
        ("feed-forward rows", c.ffn, BLOCK),
        ("value heads' states", c.state_size, BLOCK),
        ("attention heads", c.head_dim, BLOCK),
    ):
        if value % unit:
            raise UnsupportedByKernel(f"its {what} have {value} values, not a multiple of {unit}")
    if c.head_dim > MOST_HEAD_DIM:
        raise UnsupportedByKernel(f"its attention heads have {c.head_dim} values, more than {MOST_HEAD_DIM}")
    if (sharing := c.heads // c.kv_heads) > MOST_SHARING:
        raise UnsupportedByKernel(f"{sharing} of its attention heads share keys, more than {MOST_SHARING}")


def constants(model: KernelModel, sms: int, arch: int, shape: Shape, timed: bool = False) -> dict[str, str]:
    """Names and values of the constants that the device code is compiled for. Raises UnsupportedByKernel."""
    check_dimensions(model)
    c = model.config
    types = {model.types[name] for name in model.matrices()}
    numbers = {
        "HIDDEN": c.hidden,
        "FFN": c.ffn,
        "VOCAB": c.vocab,
        "HEADS": c.heads,
        "KV_HEADS": c.kv_heads,
        "HEAD_DIM": c.head_dim,
        "ROPE_DIMS": c.rope_dims,
        "KEY_HEADS": c.key_heads,
        "VALUE_HEADS": c.value_heads,
        "STATE": c.state_size,
        "CONV_TAPS": c.conv_kernel,
        "CONV_CHANNELS": c.conv_channels,
        "PARTS": attention_parts(c.kv_heads, sms),
        "ROW_TILES": shape.row_tiles,
        "STAGE_BYTES": shape.stage_bytes,
        "STAGES": shape.stages,
        "AREA_BYTES": shape.area_bytes,
    }
    return {
        "ARCH": str(arch),
        "TIMED": str(int(timed)),
        **{f"HAS_{type.name}": str(int(type in types)) for type in STREAMED},
        **{name: f"{value}u" for name, value in numbers.items()},
        "ROPE_BASE": _float(c.rope_base),
        "EPS": _float(c.eps),
    }


def _float(value: float) -> str:
    """The nearest float32 as a literal."""
    (nearest,) = struct.unpack("f", struct.pack("f", value))
    return f"{nearest!r}f"


def texts() -> list[tuple[str, str]]:
    """(name, text) of the device code's files in their order."""
    folder = files("server.kernel") / "cuda"
    return [(name, (folder / name).read_text(encoding="utf-8")) for name in TEXTS]


def waits() -> dict[int, str]:
    """What a launch may wait for, by the number in its fault word."""
    (names,) = re.findall(r"enum Where : u32 \{(.*?)\}", dict(texts())["shared.cuh"], re.DOTALL)
    return {number: name.split("=")[0].strip() for number, name in enumerate(names.split(","), 1)}


def unit(constants: dict[str, str]) -> str:
    """The whole translation unit."""
    lines = [f"#define {name} {value}" for name, value in constants.items()]
    for name, text in texts():
        lines += [f'#line 1 "{name}"', text]
    return "\n".join(lines)
