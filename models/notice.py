"""Writes NOTICE: ``python -P -m models.notice --table build/models/notice.tsv --out NOTICE``.

Attribution for the embedded model: every package whose text it was trained on, with version and licence, as the corpus
builder recorded them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from models.inputs import CORPUS, require

HEAD = """\
Draftline
Copyright The Draftline authors

Licensed under the Apache License, Version 2.0 (see LICENSE).


The embedded model, models/draftline-python-56m.gguf
====================================================

It was trained from scratch for this project, on the Python source text of the {count} packages below: the published
wheels of these versions, and the standard library of CPython. Their text belongs to their authors and stands under the
licences named, as each package's metadata state them. None of it is part of this distribution, except that a language
model may write short passages it has often read.

Left out of the training text: vendored copies of other projects, generated files, and every file that names the GPL,
LGPL, AGPL or MPL, or calls itself proprietary, in its first 3,000 characters; models/README.md says more. The text of
awscli holds its own copy of botocore (Apache-2.0).

"""


def notice(rows: Sequence[dict[str, str]]) -> str:
    """The text of NOTICE for rows with the keys package, version and licence."""
    table = [(row["package"], row["version"], row["licence"]) for row in rows]
    titles = ("package", "version", "licence, as stated")
    widths = [max(len(row[column]) for row in [titles, *table]) for column in range(2)]
    lines = [titles, ("-" * widths[0], "-" * widths[1], "-" * len(titles[2])), *table]
    return HEAD.format(count=len(table)) + "".join(
        f"{name:{widths[0]}}  {version:{widths[1]}}  {licence}\n" for name, version, licence in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, help="notice.tsv of models.corpus")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    require("notice", [(args.table, CORPUS)])
    with args.table.open(encoding="utf-8", newline="") as lines:
        args.out.write_text(notice(list(csv.DictReader(lines, delimiter="\t"))), encoding="utf-8")


if __name__ == "__main__":
    main()
