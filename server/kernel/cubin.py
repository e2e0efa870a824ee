"""Reads what NVRTC has made: an ELF file."""

from __future__ import annotations

import struct
from collections.abc import Iterator

SYMBOL_TABLE = 2
"""Type of a section."""


def symbol_bytes(cubin: bytes, name: str) -> int:
    """The size of a variable. Raises ValueError when there is no such symbol, or this isn't an ELF file of 64 bits."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not an ELF file of 64 bits")
    wanted = name.encode()
    try:
        for found, size in _symbols(cubin):
            if found == wanted:
                return size
    except struct.error as error:
        raise ValueError(f"a damaged ELF file: {error}") from error
    raise ValueError(f"there is no symbol {name}")


def _symbols(elf: bytes) -> Iterator[tuple[bytes, int]]:
    """(name, size) of every symbol."""
    (at,) = struct.unpack_from("<Q", elf, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", elf, 0x3A)
    # Of each section: its type, where it is, how long, and which section its names are in.
    sections = [struct.unpack_from("<4xI16xQQI", elf, at + n * entry_bytes) for n in range(count)]
    for kind, offset, size, link in sections:
        if kind != SYMBOL_TABLE:
            continue
        names = sections[link][1]
        for symbol in range(offset, offset + size, 24):
            (name,) = struct.unpack_from("<I", elf, symbol)
            (nbytes,) = struct.unpack_from("<Q", elf, symbol + 16)
            begin = names + name
            yield elf[begin : elf.index(b"\0", begin)], nbytes
