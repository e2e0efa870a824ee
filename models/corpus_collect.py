"""Take the usable Python files out of one package: read, filter, clean, cap."""

from __future__ import annotations

import gc
import random
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from models.corpus_dedup import Hashes, line_hashes, signature
from models.corpus_download import CPYTHON, Package, find_wheel
from models.corpus_filter import decode, parses, path_reason, scrub, text_reason

PACKAGE_CAP = 5_000_000  # bytes of text a package may give, so that no one style rules
CPYTHON_CAP = 19_000_000
CPYTHON_TEST_CAP = 6_000_000  # its test suite is half of Lib/ and says little about ordinary code

Read = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One usable file with what near-duplicate search needs to know of it."""

    package: str
    path: str
    text: str
    hashes: Hashes
    signature: Hashes


@dataclass(slots=True)
class Collected:
    """What one package gave: its files by path, and how many were left out for which reason."""

    package: Package
    files: list[SourceFile] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    scanned_bytes: int = 0


def collect(package: Package, wheels: Path, seed: int) -> Collected:
    """Read a package's files in a seeded random order until its cap is reached."""
    gc.disable()  # ast.parse makes millions of nodes and no cycles: the collector only costs time here
    try:
        if package.name == CPYTHON:
            sources = list(_cpython_sources())
            tests = [(path, read) for path, read in sources if _is_test(path)]
            others = [(path, read) for path, read in sources if not _is_test(path)]
            result = Collected(package)
            _take(result, others, CPYTHON_CAP, seed)
            _take(result, tests, CPYTHON_TEST_CAP, seed)
        else:
            result = Collected(package)
            wheel = find_wheel(package, wheels)
            if wheel is None:
                return result
            with zipfile.ZipFile(wheel) as archive:
                _take(result, list(_wheel_sources(archive)), PACKAGE_CAP, seed)
    finally:
        gc.enable()
    result.files.sort(key=lambda file: file.path)  # neighbours in a package stay neighbours in the corpus
    return result


def _is_test(path: str) -> bool:
    return (
        path.startswith("Lib/test/")
        or "/test/" in path
        or "/tests/" in path
        or path.startswith("Lib/idlelib/idle_test")
    )


def _take(result: Collected, sources: list[tuple[str, Read]], cap: int, seed: int) -> None:
    """Add to ``result`` the usable files among ``sources``, in random order, up to ``cap`` bytes."""
    random.Random(f"{seed}:{result.package.name}").shuffle(sources)
    taken = 0
    for position, (path, read) in enumerate(sources):
        reason = path_reason(path)
        text = None
        if reason is None:
            data = read()
            result.scanned_bytes += len(data)
            text = decode(data)
            reason = "not UTF-8" if text is None else text_reason(text)
        if reason is None and text is not None:
            text = scrub(text)
            if not parses(text):
                reason = "does not parse"
        if reason is not None or text is None:
            result.left_out[reason or "not UTF-8"] += 1
            continue
        size = len(text.encode())
        if taken + size > cap:
            result.left_out["over the cap"] += len(sources) - position
            return
        taken += size
        hashes = line_hashes(text)
        result.files.append(SourceFile(result.package.name, path, text, hashes, signature(hashes)))


def _wheel_sources(archive: zipfile.ZipFile) -> Iterator[tuple[str, Read]]:
    """Yield the importable .py files of a wheel, by name, as they will lie when installed."""
    for name in sorted(archive.namelist()):
        top, _, rest = name.partition("/")
        path = name
        if top.endswith(".dist-info"):
            continue
        if top.endswith(".data"):
            kind, _, path = rest.partition("/")
            if kind not in ("purelib", "platlib"):
                continue
        if path.endswith(".py"):
            yield path, lambda name=name: archive.read(name)  # type: ignore[misc]


def _cpython_sources() -> Iterator[tuple[str, Read]]:
    """Yield the .py files of the running interpreter's standard library, as ``Lib/...``."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        relative = file.relative_to(root)
        if "site-packages" not in relative.parts and "__pycache__" not in relative.parts:
            yield "Lib/" + relative.as_posix(), file.read_bytes
