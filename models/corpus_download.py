"""Fetch the pinned wheels the training corpus is made from, and read the list of pins.

Wheels are only unpacked as data: nothing in them is installed, imported or run. A wheel that can't be had for
this interpreter is reported and left out; the caller decides whether that matters.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Use = Literal["train", "held-out"]

PACKAGES_TSV = Path(__file__).with_name("packages.tsv")
CPYTHON = "cpython"  # comes from the running interpreter's own Lib/, not from a wheel
BATCH = 8  # wheels per pip process: enough to spread its start-up time, few enough to repeat after a failure


class PackageListError(Exception):
    """The list of pinned packages can't be used as it stands."""


@dataclass(frozen=True, slots=True)
class Package:
    """One pinned source of training or held-out text."""

    name: str
    version: str
    licence: str
    use: Use


def read_packages(path: Path = PACKAGES_TSV) -> list[Package]:
    """Read the pins: a tab-separated table with the columns package, version, licence, use.

    Raises PackageListError for a missing field, an unknown use or a package listed twice.
    """
    packages: list[Package] = []
    seen: set[str] = set()
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines, delimiter="\t"), start=2):
            name, use = row.get("package") or "", row.get("use") or ""
            if not all(row.get(column) for column in ("package", "version", "licence", "use")):
                raise PackageListError(f"{path}:{number}: every row needs package, version, licence and use")
            if use != "train" and use != "held-out":
                raise PackageListError(f"{path}:{number}: use is {use!r}; write 'train' or 'held-out'")
            if normalise(name) in seen:
                raise PackageListError(f"{path}:{number}: {name} is listed twice; keep one row")
            seen.add(normalise(name))
            packages.append(Package(name, row["version"], row["licence"], "train" if use == "train" else "held-out"))
    return packages


def normalise(name: str) -> str:
    """Return a distribution name in its canonical spelling (runs of ``-_.`` become one ``-``, lower case)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_wheel(package: Package, folder: Path) -> Path | None:
    """Return the package's wheel in ``folder``, or None when it isn't there."""
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if normalise(name) == normalise(package.name) and version.split("+")[0] == package.version:
            return wheel
    return None


def download(packages: Sequence[Package], folder: Path, processes: int = 6) -> list[Package]:
    """Download the wheels not yet in ``folder``, with several pips; return what is still missing."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [p for p in packages if p.name != CPYTHON and find_wheel(p, folder) is None]
    batches = [wanted[i :: -(-len(wanted) // BATCH)] for i in range(-(-len(wanted) // BATCH))]
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda batch: _fetch(batch, folder), batches))
    return [p for p in wanted if find_wheel(p, folder) is None]


def _fetch(batch: Sequence[Package], folder: Path) -> None:
    """Run pip for a batch; when that fails, for each of its packages, so that one bad pin spoils nothing."""
    if _pip(batch, folder) or len(batch) == 1:
        return
    for package in batch:
        if find_wheel(package, folder) is None and not _pip([package], folder):
            print(f"no wheel of {package.name} {package.version} for this interpreter", file=sys.stderr)


def _pip(batch: Sequence[Package], folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder)]
    command += [f"{p.name}=={p.version}" for p in batch]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
