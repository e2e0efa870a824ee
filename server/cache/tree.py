"""The tree of kept prefixes: what sequences have in common is held once.

A node is a piece of a sequence: some tokens after its parent's, their keys and values, and, where one was kept, the
recurrent state at their end. Only there can a prompt go on; nodes without one are there for those below them.
Whether a node is a prompt's beginning is decided by comparing tokens, never by a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server.model.delta_net import CHUNK

if TYPE_CHECKING:
    from server.model.state import Checkpoint, Rows

MIXED = -1
"""In place of a number of tokens in chunks: chunks follow steps, which no prompt by itself would have."""
IN_CHUNKS = -2
"""The way of a piece that was computed in chunks; that of one in steps is how many tokens before it were in chunks."""
PAGE = CHUNK
"""Sequences that part between two kept states share keys and values up to a multiple of this."""


@dataclass
class Text:
    """A text that requests follow as it grows, such as a document: how recent it is says how likely it comes again."""

    tokens: tuple[int, ...] = ()
    used: int = 0
    """When it was used last, in requests of any text."""
    requests: int = 0


@dataclass(eq=False)
class Node:
    tokens: tuple[int, ...]
    rows: Rows | None
    """None in the root alone."""
    way: int
    end: int
    """The tokens up to the last one of this node, those of the nodes above it included."""
    parent: Node | None
    text: Text
    checkpoint: Checkpoint | None = None
    children: list[Node] = field(default_factory=list)
    request: int = 0
    """The last request of its text that passed here."""

    @property
    def chunked(self) -> int:
        """How many of the tokens up to its end were computed in chunks; MIXED if not from the first on."""
        return self.end if self.way == IN_CHUNKS else self.way

    @property
    def rows_nbytes(self) -> int:
        return 8 * len(self.tokens) + (self.rows.nbytes if self.rows is not None else 0)

    @property
    def nbytes(self) -> int:
        return self.rows_nbytes + (self.checkpoint.nbytes if self.checkpoint is not None else 0)

    @property
    def far_nbytes(self) -> int:
        """Of its bytes those that lie in the host's memory, away from the device that computes."""
        rows = self.rows_nbytes if self.rows is not None and self.rows.far else 0
        return rows + (self.checkpoint.nbytes if self.checkpoint is not None and self.checkpoint.far else 0)

    def send_away(self) -> int:
        """Its checkpoint to the host's memory, and its keys and values when those below are there; those of the nodes
        above too that no checkpoint needs any more -> bytes."""
        before = self.far_nbytes
        if self.checkpoint is not None and not self.checkpoint.far:
            self.checkpoint.send_away()
        moved = 0
        node: Node | None = self
        while node is not None and node.rows is not None and all(c.rows and c.rows.far for c in node.children):
            if not node.rows.far:
                node.rows.send_away()
                moved += node.rows_nbytes if node is not self else 0
            node = node.parent if node.parent is not None and node.parent.checkpoint is None else None
        return moved + self.far_nbytes - before

    def path(self) -> list[Node]:
        """From below the root down to this node."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True)
class Piece:
    """A piece of a sequence that shall be kept, from the end of the one before it. rows: None where they are still in
    the sequence alone."""

    end: int
    way: int
    checkpoint: Checkpoint | None
    rows: Rows | None = None


class PrefixTree:
    def __init__(self) -> None:
        self.root = Node((), None, IN_CHUNKS, 0, None, Text())

    def nodes(self) -> Iterator[Node]:
        """All but the root, parents before their children."""
        waiting = list(self.root.children)
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children

    def beginnings(self, ids: tuple[int, ...]) -> Iterator[Node]:
        """The nodes that ``ids`` begins with, up to their ends."""
        waiting = [self.root]
        while waiting:
            for child in waiting.pop().children:
                wanted = ids[child.end - len(child.tokens) : child.end]
                if common_length(child.tokens, wanted) == len(child.tokens):
                    yield child
                    waiting.append(child)

    def shared(self, ids: tuple[int, ...]) -> int:
        """How many of the first tokens of ``ids`` are those of some kept sequence."""
        ends = [self.root, *self.beginnings(ids)]
        return max(
            node.end + max((common_length(c.tokens, ids[node.end : c.end]) for c in node.children), default=0)
            for node in ends
        )

    def insert(
        self, tokens: tuple[int, ...], pieces: Sequence[Piece], copy: Callable[[int, int], Rows], text: Text
    ) -> list[Node]:
        """Keep a sequence's pieces, in ascending order, but for what is kept already -> its nodes.

        copy: gives the sequence's rows from one position up to another.
        """
        node, path = self.root, []
        for piece in pieces:
            while node.end < piece.end:
                node = self._next(node, tokens[node.end : piece.end], piece, copy, text)
                path.append(node)
            if node.checkpoint is None and node.end == piece.end:
                node.checkpoint = piece.checkpoint
        return path

    def remove(self, node: Node) -> None:
        """Remove a node without children, and those above that nothing needs any more."""
        while node.parent is not None and not node.children:
            above = node.parent
            above.children.remove(node)
            node.parent = None
            if above.checkpoint is not None:
                break
            node = above

    def _next(
        self, node: Node, wanted: tuple[int, ...], piece: Piece, copy: Callable[[int, int], Rows], text: Text
    ) -> Node:
        """The child of ``node`` that holds the first of the ``wanted`` tokens, or all of them."""
        best, shared = None, 0
        for child in node.children:
            # What follows steps in chunks has bits of its own: it is the same only where it was taken from here.
            if child.way == piece.way and (child.way != MIXED or child.rows is piece.rows):
                common = common_length(child.tokens, wanted)
                if common > shared:
                    best, shared = child, common
        if best is not None:
            if shared == len(best.tokens):
                return best
            if shared < len(wanted):
                shared = (node.end + shared) // PAGE * PAGE - node.end
            if shared > 0:
                return self._split(best, shared)
        end = node.end + len(wanted)
        whole = piece.rows is not None and piece.rows.start == node.end and piece.end == end
        new = Node(wanted, piece.rows if whole else copy(node.end, end), piece.way, end, node, text)
        node.children.append(new)
        return new

    def _split(self, node: Node, count: int) -> Node:
        """Put the first ``count`` tokens of a node into one above it -> that one."""
        assert node.parent is not None
        assert node.rows is not None
        first, second = node.rows.split(count)
        end = node.end - len(node.tokens) + count
        upper = Node(node.tokens[:count], first, node.way, end, node.parent, node.text, request=node.request)
        node.parent.children[node.parent.children.index(node)] = upper
        upper.children.append(node)
        node.tokens, node.rows, node.parent = node.tokens[count:], second, upper
        return upper


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])
