"""Device source compiled by the system's C++ compiler and run on the CPU: threads are fibers, warps take turns.

What would be undefined or hang on a GPU is an EmulationError: lanes of a warp in different collectives, a barrier with
the wrong number of threads, memory out of range, a copy read before it has arrived (it finds nonsense there), waits
that nothing can end.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
DEVICE = HERE.parents[1] / "server" / "kernel" / "cuda"
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-w")
"""Most of a small test's time is compilation: with -O2 it takes twice as long as with -O1."""
FAILURE_BYTES = 1 << 16
KEPT = 150
"""Compiled libraries of earlier test runs, at most."""
THREADS = 512


class EmulationError(Exception):
    """A launch that went wrong; str() says where and what everybody was waiting for."""


def compiler() -> str | None:
    """The system's C++ compiler, if there is one."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


class Emulated:
    """Kernel source for the emulator: (name, text) of the files behind the primitives, one after another.

    constants: what stands before them, as in `server/kernel/source.py`; ARCH is 90 if it isn't there. entry: the
    kernel, with one struct of type `parameter` by value. Raises EmulationError when it doesn't compile.
    """

    def __init__(
        self,
        texts: Sequence[tuple[str, str]],
        constants: Mapping[str, str | int] | None = None,
        entry: str = "cycle",
        parameter: str = "Launch",
    ) -> None:
        self._library = ctypes.CDLL(str(_compiled(_unit(texts, constants or {}, entry, parameter))))
        self._library.emulator_memory.restype = ctypes.c_void_p
        self._library.emulator_memory.argtypes = [ctypes.c_uint64]

    def run(
        self,
        parameter: ctypes.Structure,
        sms: int,
        shared_bytes: int,
        threads: int = THREADS,
        *,
        seed: int = 0,
        delay: int = 200,
        seconds: int = 60,
    ) -> None:
        """One launch of a block on each of `sms` imagined SMs.

        seed: of the order of turns; delay: turns that a copy takes at most (0: they are there at once). Raises
        EmulationError for whatever goes wrong, also when the launch takes longer than `seconds`.
        """
        failure = ctypes.create_string_buffer(FAILURE_BYTES)
        run = self._library.emulator_run
        run.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint32] * 3,
            ctypes.c_uint64,
            *[ctypes.c_uint32] * 2,
            ctypes.c_char_p,
            ctypes.c_uint32,
        ]
        if run(ctypes.addressof(parameter), sms, threads, shared_bytes, seed, delay, seconds, failure, FAILURE_BYTES):
            raise EmulationError(failure.value.decode())

    def function(self, name: str) -> Any:
        """An `extern "C"` function of the source."""
        return getattr(self._library, name)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor full of ones in every bit (not-a-numbers), behind which memory is closed. It is never freed."""
        nbytes = max(16, prod(shape) * dtype.itemsize)
        address = self._library.emulator_memory(-(-nbytes // 16) * 16)
        if not address:
            raise MemoryError
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        ctypes.memset(address, 0xFF, nbytes)
        return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(*shape)


def _unit(texts: Sequence[tuple[str, str]], constants: Mapping[str, str | int], entry: str, parameter: str) -> str:
    constants = {"ARCH": 90, **constants, "ENTRY": entry, "PARAMETER": parameter}
    return "\n".join(
        [
            *(f'#include "{HERE / name}"' for name in ("numbers.h", "scheduler.h")),
            *(f"#define {name} {value}" for name, value in constants.items()),
            *_placed("types.cuh", (DEVICE / "types.cuh").read_text()),
            f'#include "{HERE / "primitives.h"}"',
            *(line for name, text in texts for line in _placed(name, text)),
            f'#include "{HERE / "harness.h"}"',
            "",
        ]
    )


def _placed(name: str, text: str) -> tuple[str, str]:
    return f'#line 1 "{name}"', text


def _compiled(unit: str) -> Path:
    """The shared library, kept for later tests under a name made of all that it depends on."""
    found = compiler()
    if found is None:
        raise EmulationError("there is no C++ compiler: install g++, or name one in CXX")
    parts = [unit, found, *FLAGS, *(path.read_text() for path in sorted(HERE.glob("*.h")))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"draftline-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest}.so"
    with (folder / f"{digest}.lock").open("w") as lock:  # workers of one test run want the same one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            source, part = folder / f"{digest}.cpp", folder / f"{digest}.part"
            source.write_text(unit)
            done = subprocess.run([found, *FLAGS, "-o", str(part), str(source)], capture_output=True, text=True)
            if done.returncode:
                raise EmulationError(f"{source} doesn't compile:\n{done.stderr[:6000]}")
            part.rename(library)
            source.unlink()
            for old in sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
                old.unlink(missing_ok=True)
    return library
