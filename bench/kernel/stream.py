"""The ceiling: what this GPU reads when its SMs do nothing but read the packed weights once, through the same ring."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from bench.kernel.launches import Timer
from server.kernel.compile import INSTALL
from server.kernel.errors import KernelCompileError, KernelFault
from server.kernel.source import SHARED_BYTES, THREADS, texts

ENTRY = "stream"
STAGE_BYTES, MOST_STAGES = 16384, 12
"""The ring with which a read stream was fastest on an H200."""
OWN_BYTES = 1024
"""Of an SM's shared memory, at most, beside the ring."""
WARM_UPS = 3


class PieceStruct(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("address", "nbytes")]


class StreamStruct(ctypes.Structure):
    """`Stream` of stream.cu."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("pieces", "count", "read", "fault")]


def ring(arch: int) -> tuple[int, int]:
    """Stages of the ring on an architecture, and bytes of shared memory with its barriers."""
    stages = min(MOST_STAGES, (SHARED_BYTES[arch] - OWN_BYTES) // STAGE_BYTES)
    return stages, stages * (STAGE_BYTES + 16)


def constants(arch: int) -> dict[str, str]:
    return {"ARCH": str(arch), "STAGES": f"{ring(arch)[0]}u", "STAGE_BYTES": f"{STAGE_BYTES}u"}


def own_text() -> str:
    return (files("bench.kernel") / "stream.cu").read_text(encoding="utf-8")


def compiled(arch: int) -> bytes:
    """The cubin. Raises KernelCompileError."""
    shared = dict(texts())
    lines = [f"#define {name} {value}" for name, value in constants(arch).items()]
    source = "\n".join([*lines, shared["types.cuh"], shared["primitives.cuh"], own_text()])
    try:
        from cuda.core import Program, ProgramOptions

        options = ProgramOptions(name="stream.cu", arch=f"sm_{arch}", std="c++17")
        return bytes(Program(source, "c++", options).compile("cubin").code)
    except Exception as error:
        raise KernelCompileError(f"the read stream can't be compiled for sm_{arch} ({error}): {INSTALL}") from error


def parameter(matrices: Sequence[Tensor], sms: int) -> tuple[StreamStruct, list[Tensor]]:
    """What a launch is given to read these tensors, and tensors to keep meanwhile: the pieces, bytes read by SM, fault.

    Raises ValueError for tensors that aren't whole units of 16 bytes.
    """
    pieces = (PieceStruct * len(matrices))()
    for piece, matrix in zip(pieces, matrices, strict=True):
        if matrix.data_ptr() % 16 or matrix.nbytes % 16:
            raise ValueError(f"{matrix.nbytes} bytes at {matrix.data_ptr():#x} aren't whole units of 16")
        piece.address, piece.nbytes = matrix.data_ptr(), matrix.nbytes
    device = matrices[0].device
    table = torch.frombuffer(bytearray(pieces), dtype=torch.uint8).to(device)
    read = torch.zeros(sms, dtype=torch.int64, device=device)
    fault = torch.zeros(1, dtype=torch.int32, device=device)
    struct = StreamStruct(table.data_ptr(), len(matrices), read.data_ptr(), fault.data_ptr())
    return struct, [table, read, fault]


def measure_stream(matrices: Sequence[Tensor], arch: int, sms: int, timer: Timer, launches: int) -> tuple[float, ...]:
    """Reads the matrices once for each launch -> bytes per second.

    Raises KernelCompileError; KernelFault when it doesn't run, or hasn't read everything.
    """
    struct, kept = parameter(matrices, sms)
    launch = _loaded(compiled(arch), struct, sms, ring(arch)[1], matrices[0].device)
    nbytes = sum(matrix.nbytes for matrix in matrices)
    seconds = [timer(launch) / 1e3 for _ in range(WARM_UPS + launches)][WARM_UPS:]
    if (read := int(kept[1].sum())) != nbytes:
        raise KernelFault(f"the read stream has read {read} of {nbytes} bytes; please report this")
    return tuple(nbytes / one for one in seconds)


def _loaded(cubin: bytes, struct: StreamStruct, sms: int, shared: int, device: torch.device) -> Callable[[], None]:
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise KernelCompileError(f"cuda-bindings can't be imported ({error}): {INSTALL}") from error

    def done(answer: tuple[Any, ...]) -> Any:
        status, *found = answer
        if int(status):
            raise KernelFault(f"the GPU's driver can't run the read stream: {status}")
        return found[0] if found else None

    torch.cuda.current_stream(device).synchronize()  # torch's context is there and current
    module = done(driver.cuModuleLoadData(cubin))
    function = done(driver.cuModuleGetFunction(module, ENTRY.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    done(driver.cuFuncSetAttribute(function, limit, shared))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(struct))

    def launch() -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        where = ctypes.addressof(pointers)
        done(driver.cuLaunchKernel(function, sms, 1, 1, THREADS, 1, 1, shared, stream, where, 0))

    return launch
