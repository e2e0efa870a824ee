"""Compiles the kernel with NVRTC for a model and an architecture, and keeps what came out on disk.

cuda-core, the extra `gpu`, is imported only here and in `gpu.py`. Compiling needs no GPU and no driver.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from server.kernel.cubin import symbol_bytes
from server.kernel.errors import KernelCompileError
from server.kernel.model import KernelModel
from server.kernel.source import ENTRY, SHARED_BYTES, constants, shape, unit

CACHE_VARIABLE = "DRAFTLINE_CACHE_DIR"
KEPT = 32
"""Files of the cache at most; the oldest go."""
EXPORT = '\nextern "C" __device__ u8 shared_total[SHARED_TOTAL];\n'
"""Its size stands in the symbol table: so the shared memory that the source works out becomes known."""
OPTIONS = {"std": "c++17", "fma": False, "ptxas_options": ["-v"]}
"""fma: products and sums are fused where the source says so, in every variant of the kernel alike."""
INSTALL = "install cuda-core and an NVRTC: pip install 'draftline[gpu]'"


@dataclass(frozen=True)
class Report:
    """What ptxas says of a kernel. registers: of a thread; the others in bytes, shared_bytes of a block."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class CompiledKernel:
    cubin: bytes
    report: Report


def compile_kernel(
    model: KernelModel, sms: int, arch: int, row_tiles: int, *, timed: bool = False, cache: Path | None = None
) -> CompiledKernel:
    """The kernel for a model on `sms` SMs of an architecture (90 is compute capability 9.0).

    row_tiles: 1 for up to 8 rows, 2 for up to 16. timed: with time stamps. cache: a folder of compiled kernels (None:
    this user's). Raises UnsupportedByKernel; KernelCompileError without NVRTC, or when an SM has too little shared
    memory.
    """
    source = unit(constants(model, sms, arch, shape(model, arch, row_tiles), timed)) + EXPORT
    folder = cache or cache_folder()
    digest = hashlib.sha256(repr((source, arch, OPTIONS, _nvrtc_version())).encode()).hexdigest()[:32]
    path = folder / f"{digest}.kernel"
    found = _read(path)
    if found is None:
        found = _compile(source, arch)
        _write(path, found)
    if found.report.shared_bytes > SHARED_BYTES[arch]:
        raise KernelCompileError(
            f"the kernel needs {found.report.shared_bytes} bytes of shared memory, sm_{arch} has {SHARED_BYTES[arch]}: "
            "please report it with the model's dimensions; the torch executor runs the model meanwhile"
        )
    return found


def cache_folder() -> Path:
    """This user's; ``DRAFTLINE_CACHE_DIR`` puts it elsewhere."""
    given = os.environ.get(CACHE_VARIABLE)
    root = Path(given).absolute() if given else user_cache_path("draftline", appauthor=False)
    return root / "kernels"


def require_compiler() -> None:
    """Raises KernelCompileError where kernels can't be compiled, with what to install."""
    _nvrtc_version()
    _program()


def _nvrtc_version() -> tuple[int, int]:
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise RuntimeError and others when there is no library
        raise KernelCompileError(f"there is no CUDA compiler ({_line(error)}): {INSTALL}") from error
    if int(status):
        raise KernelCompileError(f"NVRTC doesn't tell its version ({status}): {INSTALL}")
    return major, minor


def _program() -> tuple[Any, Any]:
    """cuda-core's Program and ProgramOptions."""
    try:
        from cuda.core import Program, ProgramOptions
    except Exception as error:
        raise KernelCompileError(f"cuda-core can't be imported ({_line(error)}): {INSTALL}") from error
    return Program, ProgramOptions


def _compile(source: str, arch: int) -> CompiledKernel:
    new_program, new_options = _program()
    log = io.StringIO()
    try:
        program = new_program(source, "c++", new_options(name="cycle.cu", arch=f"sm_{arch}", **OPTIONS))
        cubin = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:
        raise KernelCompileError(
            f"the kernel doesn't compile for sm_{arch}: please report this (the torch executor runs the model)\n{error}"
        ) from error
    try:
        shared_bytes = symbol_bytes(cubin, "shared_total")
    except ValueError as error:
        raise KernelCompileError(f"what this NVRTC has made can't be read ({error}); {INSTALL}") from error
    return CompiledKernel(cubin, parse_report(log.getvalue(), shared_bytes))


def parse_report(log: str, shared_bytes: int) -> Report:
    """ptxas' report of one kernel that needs so much shared memory. Spills and stack are those of all its functions.

    Raises KernelCompileError.
    """
    used = re.search(rf"Compiling entry function '{ENTRY}'.*?Used (\d+) registers", log, re.DOTALL)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not used or not frames:
        raise KernelCompileError(
            f"this NVRTC's report of the kernel can't be read; {INSTALL}, version 12.8 or later:\n{log}"
        )
    stack, stores, loads = (sum(int(frame[i]) for frame in frames) for i in range(3))
    return Report(int(used[1]), stores + loads, stack, shared_bytes)


# ---------------------------------------------------------------------------------------------------- cache


def _read(path: Path) -> CompiledKernel | None:
    """None when it isn't there or isn't whole."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    checksum, _, rest = raw.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != checksum:
        return None
    report, _, cubin = rest.partition(b"\n")
    return CompiledKernel(cubin, Report(**json.loads(report)))


def _write(path: Path, kernel: CompiledKernel) -> None:
    """Whole or not at all; without a place to write, the next start compiles again."""
    rest = json.dumps(asdict(kernel.report)).encode() + b"\n" + kernel.cubin
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in sorted(path.parent.glob("*.kernel"), key=lambda p: p.stat().st_mtime)[: -KEPT + 1]:
            old.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        Path(part.name).replace(path)


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
