"""Kept prefixes in a file, from which the next engine of the same model goes on.

A file is a line that says what it is, then blocks, each with its length and a checksum: first a header, then a node of
the tree each, parents before children. What can't be read, for whatever reason, is a prompt computed again and one
line in the log. The checksums are keyed with all that the bits in it depend on, so that blocks of another model are as
good as damaged. It holds the tokens of what was edited: nobody else can read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from server import __version__
from server.cache.tree import IN_CHUNKS, MIXED, Node, PrefixTree, Text
from server.model.state import Checkpoint, Rows

if TYPE_CHECKING:
    from server.model.state import SequenceState

FORMAT = 1
KIND = b"draftline kept prefixes, format "
MAGIC = KIND + b"%d\n" % FORMAT
SUFFIX = ".prefixes"
TEMPORARY = ".prefixes-new"
DISK_BYTES = 2**30
"""Of a folder, unless said otherwise: of this model, and of others as far as there is room."""
SAVE_S = 6.0
"""For writing: a process that ends is given 10 seconds, and on a slow disk the most valuable part is better than
none."""
SYNC_BYTES = 64 * 2**20
"""So much at a time is on the disk before the clock is looked at: what is only in memory takes no time."""
SAMPLES = 64
SAMPLE_BYTES = 64 * 1024
DIGEST_BYTES = 16
BLOCK = struct.Struct(f"<Q{DIGEST_BYTES}s")
DTYPES = {str(t): t for t in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}

log = logging.getLogger("draftline.engine")


class UnreadableCache(Exception):  # noqa: N818
    """A file, or a block of it, can't be used; the text says why."""


def identity(model_file: Path, *arithmetic: object) -> bytes:
    """What the bits of a kept state depend on, as 32 bytes. arithmetic: what the caller knows of how it computes.

    Of the model's weights samples are read, its size and its time: all of a large file would take longer than what
    the cache saves. Raises OSError.
    """
    found = model_file.stat()
    capability = torch.backends.cpu.get_cpu_capability()
    facts = (FORMAT, __version__, torch.__version__, platform.machine(), capability, found.st_size, found.st_mtime_ns)
    digest = blake2b(repr((facts, arithmetic)).encode(), digest_size=32)
    with model_file.open("rb") as file:
        for sample in range(SAMPLES):
            file.seek(max(0, found.st_size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()


class CacheFile:
    """The file of one model in a folder that may hold those of others."""

    def __init__(self, folder: Path, identity: bytes, budget: int = DISK_BYTES) -> None:
        """budget: bytes that the files of the folder may take."""
        self.path = folder / f"v{FORMAT}-{identity.hex()[:24]}{SUFFIX}"
        self.budget = budget
        self._identity = identity

    def load(self, new_state: Callable[[], SequenceState], vocabulary: int, limit: int) -> PrefixTree:
        """What is readable of the file. limit: bytes, after which the rest, which is worth less, is left."""
        tree, damaged = PrefixTree(), 0
        nodes = {-1: tree.root}
        self._remove_left()
        try:
            with self.path.open("rb") as file:
                state, texts = new_state(), self._header(file)
                for index, body in enumerate(self._blocks(file)):
                    if limit <= 0:
                        break
                    try:
                        if body is None:
                            raise UnreadableCache("a checksum is wrong")
                        node = _node(body, nodes, texts, state, vocabulary)
                    except (UnreadableCache, ValueError, KeyError, TypeError, IndexError, struct.error):
                        damaged += 1
                        continue
                    nodes[index] = node
                    limit -= node.nbytes
        except FileNotFoundError:
            return tree
        except (OSError, UnreadableCache) as error:
            log.warning("kept prefixes in %s are ignored: %s", self.path, _reason(error))
            return PrefixTree()
        if damaged:
            log.warning(
                "kept prefixes in %s: %d can't be read and are ignored, %d can", self.path, damaged, len(nodes) - 1
            )
        for node in [node for node in tree.nodes() if not node.children and node.checkpoint is None]:
            tree.remove(node)
        return tree

    def save(self, nodes: Sequence[tuple[Node, bool]]) -> None:
        """Write nodes, with their checkpoints or without: what is worth most first, and parents before children. The
        file before it stays until it is there.

        What goes wrong is a line in the log.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(TEMPORARY, f"{self.path.stem}-", self.path.parent)
            temporary = Path(name)
            try:
                with os.fdopen(number, "wb") as file:
                    with contextlib.suppress(OSError):  # a file system without locks
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._write(file, nodes)
                    _sync(file)
                temporary.replace(self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._make_room()
        except OSError as error:
            log.warning("kept prefixes can't be written to %s: %s", self.path, _reason(error))

    def _remove_left(self) -> None:
        """Remove what processes left that ended while they wrote; one that still writes holds a lock on its file."""
        for left in self.path.parent.glob(f"*{TEMPORARY}"):
            with contextlib.suppress(OSError), left.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                except OSError:  # a file system without locks
                    pass
                left.unlink()

    def _make_room(self) -> None:
        """Other models' files go, the oldest first, until the folder holds its budget."""
        others = []
        for path in self.path.parent.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another engine makes room too
                others += [(path.stat(), path)] if path != self.path else []
        excess = self.path.stat().st_size + sum(found.st_size for found, _ in others) - self.budget
        for found, path in sorted(others, key=lambda other: other[0].st_mtime_ns):
            if excess > 0:
                path.unlink(missing_ok=True)
                excess -= found.st_size

    def _write(self, file: BinaryIO, nodes: Sequence[tuple[Node, bool]]) -> None:
        newest_first = sorted({id(n.text): n.text for n, _ in nodes}.values(), key=lambda text: text.used, reverse=True)
        rank = {id(text): n for n, text in enumerate(newest_first)}
        number = {id(node): n for n, (node, _) in enumerate(nodes)}
        until, synced = time.monotonic() + SAVE_S, 0
        file.write(MAGIC)
        header = {"model": self._identity.hex(), "texts": len(newest_first)}
        self._write_block(file, -1, json.dumps(header).encode(), b"")
        for index, (node, with_checkpoint) in enumerate(nodes):
            if file.tell() - synced > SYNC_BYTES:
                _sync(file)
                synced = file.tell()
            if index and time.monotonic() > until:
                log.warning("the disk of %s is slow: %d of %d pieces are kept", self.path.parent, index, len(nodes))
                return
            assert node.rows is not None
            kept = node.checkpoint if with_checkpoint else None
            tensors = [node.rows.stored, *((kept.last_hidden, kept.memory, kept.conv) if kept is not None else ())]
            facts = {
                "parent": number.get(id(node.parent), -1),
                "tokens": node.tokens,
                "way": node.way,
                "text": rank[id(node.text)],
                "ago": node.text.requests - node.request,
                "tensors": [(str(x.dtype), list(x.shape)) for x in tensors],
            }
            self._write_block(file, index, json.dumps(facts).encode(), b"".join(map(_bytes, tensors)))

    def _write_block(self, file: BinaryIO, index: int, facts: bytes, data: bytes) -> None:
        body = struct.pack("<I", len(facts)) + facts + data
        file.write(BLOCK.pack(len(body), self._digest(index, body)))
        file.write(body)

    def _header(self, file: BinaryIO) -> list[Text]:
        """-> the texts that nodes belong to, the newest first. Raises UnreadableCache."""
        line = file.readline(64)
        if line != MAGIC:
            other = "it has another version's format" if line.startswith(KIND) else "it is no such file"
            raise UnreadableCache(other)
        body = next(self._blocks(file, -1), None)
        if body is None:
            raise UnreadableCache("it is damaged, or of another model, processor or version")
        return [Text(used=-rank) for rank in range(json.loads(body[4:])["texts"])]

    def _blocks(self, file: BinaryIO, index: int = 0) -> Iterator[bytes | None]:
        """The bodies of the blocks that follow, None for one that is damaged; after a damaged length nothing fits."""
        size = os.fstat(file.fileno()).st_size
        while found := file.read(BLOCK.size):
            if len(found) < BLOCK.size:
                yield None
                return
            length, digest = BLOCK.unpack(found)
            if length > size - file.tell():
                yield None
                return
            body = file.read(length)
            yield body if self._digest(index, body) == digest else None
            index += 1

    def _digest(self, index: int, body: bytes) -> bytes:
        digest = blake2b(struct.pack("<qQ", index, len(body)), digest_size=DIGEST_BYTES, key=self._identity)
        digest.update(body)
        return digest.digest()


def _node(body: bytes, nodes: dict[int, Node], texts: list[Text], state: SequenceState, vocabulary: int) -> Node:
    """The node that a block describes, as the child of one before it. Raises UnreadableCache, KeyError and such."""
    (length,) = struct.unpack_from("<I", body)
    facts = json.loads(body[4 : 4 + length])
    parent = nodes[facts["parent"]]
    tokens, way, text = tuple(facts["tokens"]), facts["way"], texts[facts["text"]]
    if not tokens or min(tokens) < 0 or max(tokens) >= vocabulary or way < min(MIXED, IN_CHUNKS):
        raise UnreadableCache("its tokens are not the model's")
    stored, *recurrent = _tensors(body, 4 + length, facts["tensors"])
    rows = Rows(parent.end, stored.to(state.memory.device))
    end = parent.end + len(tokens)
    checkpoint = None
    if recurrent:
        hidden, memory, conv = (x.to(state.memory.device) for x in recurrent)
        before = [token for node in parent.path() for token in node.tokens]
        checkpoint = Checkpoint((*before, *tokens), hidden, memory, conv)
    if not state.could_hold(rows, len(tokens), checkpoint):
        raise UnreadableCache("its tensors are not the model's")
    node = Node(tokens, rows, way, end, parent, text, checkpoint, request=-facts["ago"])
    parent.children.append(node)
    return node


def _tensors(body: bytes, start: int, described: list[list[Any]]) -> Iterator[torch.Tensor]:
    view = memoryview(body)
    for name, shape in described:
        empty = torch.empty(shape, dtype=DTYPES[name])
        data = bytearray(view[start : start + empty.nbytes])
        if len(data) != empty.nbytes:
            raise UnreadableCache("it is too short")
        start += empty.nbytes
        yield torch.frombuffer(data, dtype=empty.dtype).view(shape) if data else empty
    if start != len(body):
        raise UnreadableCache("it is too long")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _bytes(x: torch.Tensor) -> bytes:
    return x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
