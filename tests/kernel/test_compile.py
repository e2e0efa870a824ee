"""Compiling for every architecture, without a GPU: registers, spills, shared memory; and the cache of kernels."""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from server.kernel import compile as compiling
from server.kernel.compile import CompiledKernel, Report, cache_folder, compile_kernel, parse_report
from server.kernel.cubin import symbol_bytes
from server.kernel.errors import KernelCompileError, UnsupportedByKernel
from server.kernel.model import KernelModel, preset_model
from server.kernel.source import SHARED_BYTES, constants, find_arch, row_tiles, shape, texts, waits
from server.synth.mixes import find_mix
from server.synth.presets import PRESETS

SMS = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}
SPILLED = {80: 2688, 86: 2688, 89: 2688, 90: 0, 100: 256, 120: 256}
"""Bytes that may spill in the kernel for up to 8 rows. All are to become 0 before these architectures are called
supported (`docs/kernel.md`); sm_90's are."""
KEPT = Path(tempfile.gettempdir()) / f"draftline-kernels-{os.getuid()}"
"""Of earlier test runs: the source is in the name."""
REPORT = """ptxas info    : 219036 bytes gmem
ptxas info    : Compiling entry function 'cycle' for 'sm_90'
ptxas info    : Function properties for cycle
ptxas         .     192 bytes stack frame, 976 bytes spill stores, 892 bytes spill loads
ptxas info    : Used 128 registers, used 16 barriers, 192 bytes cumulative stack size
"""


def model_of(preset: str, mix: str = "q4_k_m") -> KernelModel:
    return preset_model(PRESETS[preset], find_mix(mix))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("arch", "tiles"), [*((arch, 1) for arch in SHARED_BYTES), (90, 2)])
def test_the_27b_kernel_compiles_for_every_architecture(arch: int, tiles: int) -> None:
    report = compile_kernel(model_of("27b"), SMS[arch], arch, tiles, cache=KEPT).report
    assert report.shared_bytes <= SHARED_BYTES[arch]
    assert report.registers * 512 <= 65536
    assert report.spill_bytes <= (SPILLED[arch] if tiles == 1 else 256)


@pytest.mark.parametrize("preset", ["0.8b", "4b", "27b"])
@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_every_size_fits_into_shared_memory(arch: int, preset: str) -> None:
    for tiles in (1, 2):
        found = shape(model_of(preset), arch, tiles)
        assert found.stage_bytes >= 4352, "a stage holds the largest tile"
        assert found.stage_bytes % 128 == 0
        assert found.stages >= (4 if tiles == 1 else 2)
        assert found.stages * found.stage_bytes + found.area_bytes < SHARED_BYTES[arch]


def test_variants_and_architectures() -> None:
    assert [row_tiles(rows) for rows in (1, 8, 9, 16)] == [1, 1, 2, 2]
    assert [find_arch(*capability) for capability in ((9, 0), (8, 7), (10, 3), (12, 1))] == [90, 86, 100, 120]
    with pytest.raises(UnsupportedByKernel, match=r"compute capability is 7\.5"):
        find_arch(7, 5)


def test_constants_are_the_models() -> None:
    model = model_of("27b")
    found = constants(model, 132, 90, shape(model, 90, 1))
    assert found["HIDDEN"] == "5120u"
    assert found["PARTS"] == "33u"
    assert found["HAS_Q4_K"] == found["HAS_Q6_K"] == "1"
    assert found["HAS_Q8_0"] == "0"
    assert float(found["EPS"].rstrip("f")) == pytest.approx(1e-6, rel=1e-6)


def test_dimensions_that_it_is_not_written_for_are_named() -> None:
    model = model_of("tiny", "f16")
    odd = KernelModel.of(replace(model.config, state_size=48), model.types)
    with pytest.raises(UnsupportedByKernel, match="states have 48 values, not a multiple of 32"):
        constants(odd, 132, 90, shape(model, 90, 1))


def test_the_wait_in_a_fault_word_has_a_name() -> None:
    assert waits()[1] == "AT_STAGE_FULL"
    assert "AT_GRID" in waits().values()


# ---------------------------------------------------------------------------------------------------- reports, errors


def test_ptxas_reports_are_read() -> None:
    assert parse_report(REPORT, 219036) == Report(registers=128, spill_bytes=1868, stack_bytes=192, shared_bytes=219036)
    with pytest.raises(KernelCompileError, match=r"can't be read; install cuda-core and an NVRTC"):
        parse_report("ptxas fatal", 0)


def test_sizes_are_read_from_the_symbol_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = compile_kernel(model_of("tiny"), 132, 90, 1, cache=tmp_path)
    assert symbol_bytes(made.cubin, "shared_total") == made.report.shared_bytes
    for damaged in (b"not ELF", made.cubin[:100], made.cubin[:-1000]):
        with pytest.raises(ValueError, match=r"ELF|symbol"):
            symbol_bytes(damaged, "shared_total")
    monkeypatch.setattr(compiling, "EXPORT", "")
    with pytest.raises(KernelCompileError, match="there is no symbol shared_total"):
        compile_kernel(model_of("tiny"), 132, 90, 1, cache=tmp_path)


def test_source_that_does_not_compile_is_an_error_with_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiling, "unit", lambda constants: "not CUDA")
    with pytest.raises(KernelCompileError, match=r"doesn't compile for sm_90[^$]*error"):
        compile_kernel(model_of("tiny"), 132, 90, 1, cache=tmp_path)


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(KernelCompileError, match=r"there is no CUDA compiler[^$]*pip install 'draftline\[gpu\]'"):
        compile_kernel(model_of("tiny"), 132, 90, 1, cache=tmp_path)


def test_too_much_shared_memory_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    large = CompiledKernel(b"cubin", Report(128, 0, 0, SHARED_BYTES[90] + 16))
    monkeypatch.setattr(compiling, "_compile", lambda source, arch: large)
    with pytest.raises(KernelCompileError, match="bytes of shared memory, sm_90 has"):
        compile_kernel(model_of("tiny"), 132, 90, 1, cache=tmp_path)


# ---------------------------------------------------------------------------------------------------- cache


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[int] = []

    def compile_once(source: str, arch: int) -> CompiledKernel:
        made.append(arch)
        return CompiledKernel(b"\n\n" + bytes(range(256)), Report(128, 0, 0, 4096))

    monkeypatch.setattr(compiling, "_compile", compile_once)
    model = model_of("tiny")
    first = compile_kernel(model, 132, 90, 1, cache=tmp_path)
    assert compile_kernel(model, 132, 90, 1, cache=tmp_path) == first
    assert made == [90]
    for arguments in ((132, 90, 2), (131, 90, 1), (132, 100, 1)):  # another variant, another number of SMs, another GPU
        compile_kernel(model, *arguments, cache=tmp_path)
    compile_kernel(model, 132, 90, 1, timed=True, cache=tmp_path)
    assert made == [90, 90, 90, 100, 90]
    (path, *_) = sorted(tmp_path.glob("*.kernel"), key=lambda p: p.stat().st_mtime)
    path.write_bytes(path.read_bytes()[:-1])
    assert compile_kernel(model, 132, 90, 1, cache=tmp_path) == first
    assert len(made) == 6, "a file that isn't whole is made again"
    assert not list(tmp_path.glob("*.part"))


def test_the_cache_keeps_the_newest_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "KEPT", 3)
    monkeypatch.setattr(compiling, "_compile", lambda source, arch: CompiledKernel(b"", Report(1, 0, 0, 0)))
    for sms in range(1, 8):
        compile_kernel(model_of("tiny"), sms, 90, 1, cache=tmp_path)
    assert len(list(tmp_path.glob("*.kernel"))) == 3


def test_a_folder_that_cannot_be_written_costs_only_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = CompiledKernel(b"", Report(1, 0, 0, 0))
    monkeypatch.setattr(compiling, "_compile", lambda source, arch: made)
    (tmp_path / "file").write_text("")
    assert compile_kernel(model_of("tiny"), 132, 90, 1, cache=tmp_path / "file" / "cache") == made


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTLINE_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path / "kernels"


def test_all_texts_are_there() -> None:
    assert all(text for _, text in texts())
