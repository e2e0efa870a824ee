"""``draftline`` on a slow disk: the real engine, whose file of kept prefixes takes SLOW_DISK_S seconds a block."""

from __future__ import annotations

import os
import time
from typing import Any

from server import cli
from server.cache.disk import CacheFile

write_block = CacheFile._write_block


def write_slowly(self: CacheFile, *arguments: Any) -> None:
    write_block(self, *arguments)
    time.sleep(float(os.environ["SLOW_DISK_S"]))


CacheFile._write_block = write_slowly  # type: ignore[method-assign]

if __name__ == "__main__":
    cli.main()
