"""The structs of `cuda/types.cuh` on the host, field by field: every field has 8 bytes, addresses too."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from server.gguf.types import TensorType

STRIPS = 4
"""Strips of a weight phase at most."""


class Kind(IntEnum):
    EMBED = 0
    MTP_INPUT = 1
    PROJECT = 2
    RESIDUAL = 3
    GATE_UP = 4
    HEAD = 5
    DELTA_RULE = 6
    ATTENTION = 7
    ATTENTION_REDUCE = 8
    VERIFY = 9


ROWS = {"verify": 0, "behind": 1, "one": 2}
"""`RowsKind`."""
TYPES = {
    TensorType.F32: 0,
    TensorType.F16: 1,
    TensorType.BF16: 2,
    TensorType.Q8_0: 3,
    TensorType.Q4_K: 4,
    TensorType.Q5_K: 5,
    TensorType.Q6_K: 6,
}
"""`Type`."""


def _words(names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, ctypes.c_uint64) for name in names.split()]


class Int8Rows(ctypes.Structure):
    _fields_ = _words("values scales sums")


class StripStruct(ctypes.Structure):
    _fields_ = [
        ("tiles", ctypes.c_uint64 * 2),
        *_words("matrices rows target stride column ring"),
    ]


class InstructionStruct(ctypes.Structure):
    _fields_ = [
        *_words("kind rows_kind rows_limit ranges portions"),
        ("strip", StripStruct * STRIPS),
        *_words("blocks"),
        ("input", Int8Rows),
        *_words("input_low squares segments segment_width"),
        ("output", Int8Rows),
        *_words("output_low output_squares x add norm norm2 hidden best logits draft_ids"),
        *_words("table table_type table_row_bytes step drafts draft_best draft_best_stride tokens"),
        *_words("memory conv keys deltas decays z gates taps log_decay time_bias gate_norm"),
        *_words("qkv cache_k cache_v capacity queries parts stats q_norm k_norm"),
    ]


class LaunchStruct(ctypes.Structure):
    _fields_ = _words(
        "instructions count counts accepted given hidden mtp_hidden sums handed barrier epoch fault times"
    )


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "Int8Rows": Int8Rows,
    "Strip": StripStruct,
    "Instruction": InstructionStruct,
    "Launch": LaunchStruct,
}
"""By their names in `types.cuh`."""
