"""Build the training corpus: ``python -P -m models.corpus --out build/models``.

Downloads the pinned packages, keeps the usable files, drops near-copies (of held-out files first of all), and
writes

* ``train-NN.jsonl.xz``: the training text in parts, one JSON object {"package", "path", "text"} a line, the
  files of a package together, the packages in a seeded random order, so every part is a fair sample;
* ``heldout.jsonl.xz``: the same for the packages nothing is trained on;
* ``text/``: the same parts uncompressed, for the tokenizer's trainer;
* ``notice.tsv``: package, version, licence, bytes, for the NOTICE file;
* ``corpus-stats.json``: counts of files and bytes, kept and left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from models.corpus_collect import Collected, SourceFile, collect
from models.corpus_dedup import near_duplicates
from models.corpus_download import CPYTHON, PACKAGES_TSV, Package, download, read_packages
from models.files import File, write_files

SEED = 1
PART_BYTES = 325_000_000  # of text; xz -9e makes 6.5 to 7 times less of it
MAX_PART_BYTES = 50 * 2**20  # compressed; a larger file is refused by the places a snapshot has to pass


class CorpusError(Exception):
    """The corpus can't be built as asked."""


def drop_near_duplicates(collected: Sequence[Collected]) -> None:
    """Remove, in place, the files nearly equal to another; no held-out file goes for a training file's."""
    ordered = sorted(collected, key=lambda c: (c.package.use != "held-out", c.package.name))
    files = [(c, file) for c in ordered for file in c.files]
    dropped = set(near_duplicates([f.hashes for _, f in files], [f.signature for _, f in files]))
    for index in dropped:
        files[index][0].left_out["near-duplicate"] += 1
    gone = {id(files[index][1]) for index in dropped}
    for c in collected:
        c.files = [file for file in c.files if id(file) not in gone]


def split_parts(packages: Sequence[Collected], part_bytes: int, seed: int) -> list[list[Collected]]:
    """Deal the packages, in a seeded random order, into parts of about equal size, ``part_bytes`` at most."""
    order = sorted(packages, key=lambda c: c.package.name)
    random.Random(seed).shuffle(order)
    sizes = [text_bytes(c.files) for c in order]
    count = max(1, -(-sum(sizes) // part_bytes))
    parts: list[list[Collected]] = [[] for _ in range(count)]
    before = 0
    for c, size in zip(order, sizes, strict=True):
        parts[min(count - 1, int((before + size / 2) * count / max(1, sum(sizes))))].append(c)
        before += size
    return parts


def text_bytes(files: Iterable[SourceFile]) -> int:
    """Return the UTF-8 size of the files' texts."""
    return sum(len(file.text.encode()) for file in files)


def compress(source: Path, target: Path) -> int:
    """Compress ``source`` with xz -9e into ``target``; return the compressed size in bytes."""
    unfinished = target.with_suffix(".partial")
    packer = lzma.LZMACompressor(preset=9 | lzma.PRESET_EXTREME)
    with source.open("rb") as text, unfinished.open("wb") as out:
        while block := text.read(1 << 20):
            out.write(packer.compress(block))
        out.write(packer.flush())
    unfinished.replace(target)
    return target.stat().st_size


def write_notice(collected: Iterable[Collected], path: Path) -> None:
    """Write which packages the training text comes from, under which licence, and how much of each."""
    with path.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, delimiter="\t", lineterminator="\n")
        table.writerow(("package", "version", "licence", "files", "bytes"))
        for c in sorted(collected, key=lambda c: c.package.name):
            if c.package.use == "train" and c.files:
                p = c.package
                table.writerow((p.name, p.version, p.licence, len(c.files), text_bytes(c.files)))


def statistics(collected: Sequence[Collected], missing: Sequence[Package]) -> dict[str, object]:
    """Count what was kept and left out, for training and held-out text."""
    stats: dict[str, object] = {"missing": [f"{p.name}=={p.version}" for p in missing]}
    for use in ("train", "held-out"):
        chosen = [c for c in collected if c.package.use == use]
        stats[use] = {
            "packages": sum(bool(c.files) for c in chosen),
            "files": sum(len(c.files) for c in chosen),
            "bytes": sum(text_bytes(c.files) for c in chosen),
            "left_out": dict(sum((c.left_out for c in chosen), Counter[str]()).most_common()),
        }
    return stats


def build(out: Path, wheels: Path, packages: Sequence[Package], processes: int) -> None:
    """Run all steps; raise CorpusError for another interpreter, a missing held-out package or a part too large."""
    version = platform.python_version()
    if pinned := [p.version for p in packages if p.name == CPYTHON and p.version != version]:
        raise CorpusError(f"the list pins CPython {pinned[0]}, whose own Lib/ is read; this is {version}")
    text = out / "text"
    text.mkdir(parents=True, exist_ok=True)
    clock = _Clock()
    missing = download(packages, wheels)
    clock.say(f"wheels ready, {len(missing)} missing")
    if lost := [p.name for p in missing if p.use == "held-out"]:
        raise CorpusError(f"held-out packages missing: {', '.join(lost)}; without them train text can't be kept apart")
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(collect, p, wheels, SEED) for p in packages if p not in missing]
        collected = [job.result() for job in jobs]
    clock.say("files collected")
    drop_near_duplicates(collected)
    clock.say("near-duplicates dropped")
    parts = split_parts([c for c in collected if c.package.use == "train"], PART_BYTES, SEED)
    named = {"heldout": [c for c in collected if c.package.use == "held-out"]}
    named |= {f"train-{number:02}": part for number, part in enumerate(parts)}
    for name, part in named.items():
        write_files((File(f.package, f.path, f.text) for c in part for f in c.files), text / f"{name}.jsonl")
    write_notice(collected, out / "notice.tsv")
    stats = statistics(collected, missing)
    (out / "corpus-stats.json").write_text(json.dumps(stats, indent=1) + "\n", encoding="utf-8")
    clock.say("text written; compressing")
    del collected, parts  # the compressors need the memory more
    sources = [text / f"{name}.jsonl" for name in named]
    targets = [out / f"{name}.jsonl.xz" for name in named]
    with ProcessPoolExecutor(processes) as pool:
        sizes = dict(zip(targets, pool.map(compress, sources, targets), strict=True))
    clock.say("; ".join(f"{target.name} {size / 2**20:.1f} MiB" for target, size in sizes.items()))
    if large := [target.name for target, size in sizes.items() if size > MAX_PART_BYTES]:
        raise CorpusError(f"{', '.join(large)}: over {MAX_PART_BYTES >> 20} MiB; lower PART_BYTES and run again")


class _Clock:
    """Prints progress with the seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.start:6.0f} s  {what}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the corpus builder."""
    parser = argparse.ArgumentParser(prog="models.corpus", description="Build the training corpus.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished files")
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"), help="folder for downloaded wheels")
    parser.add_argument("--packages", type=Path, default=PACKAGES_TSV, help="table of pinned packages")
    parser.add_argument("--processes", type=int, default=2, help="processes for filtering and compressing")
    options = parser.parse_args(arguments)
    try:
        build(options.out, options.wheels, read_packages(options.packages), options.processes)
    except CorpusError as error:
        print(f"corpus: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
