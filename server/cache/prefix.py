"""The prefix cache: prompts and answers as a tree, which a prompt that begins like them goes on from.

A request has a state of its own, with keys and values in one piece, which attention reads fastest. When it is given
back, what the tree lacks of it is copied there, and the state stays as the next one's: most requests begin like the
one before, and copy nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from server.cache.borders import ON_CPU, Cutting, kept_states, prefill_cuts, steps_begin
from server.cache.tree import IN_CHUNKS, MIXED, Node, Piece, PrefixTree, Text, common_length

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import Checkpoint, Rows, SequenceState

SAME_TEXT = 256
"""A request that differs from a text no more than so many tokens before its end is that text, edited."""
LONG_ANSWER = 128
"""A prompt that goes on after an earlier answer would have it in chunks. Where more tokens than this would be computed
again, they are taken as the answer's steps left them: the one case in which what was cached shows, in the rounding."""
NEWEST = 4
"""States of a running request that stay whatever they take: those near its cursor."""
SPARE = 2
"""States that are kept for the next requests: those of an editor and of an agent."""
WORTHLESS = 2
"""Tokens: a state that probably saves less than these is not kept, whatever room there is."""
TEXTS = 64
"""Texts whose place among the others is remembered."""


@dataclass(frozen=True)
class KeptState:
    """A checkpoint. chunked: how many of its tokens, from the first on, were computed in chunks; MIXED if not so."""

    checkpoint: Checkpoint
    chunked: int

    @property
    def length(self) -> int:
        return self.checkpoint.length


@dataclass
class CachedSequence:
    """A state that holds verified tokens only, and earlier ones of it that shall be kept, in ascending order of length.

    chunked: as in ``KeptState``, of the state as it is; what follows these tokens was computed in steps.
    taken: what it was made of.
    """

    state: SequenceState
    states: list[KeptState] = field(default_factory=list)
    chunked: int = 0
    taken: tuple[Piece, ...] = ()
    text: Text = field(default_factory=Text)
    cutting: Cutting = ON_CPU
    limit: float = math.inf
    """Bytes that ``states`` may take: a long prompt of a model with large states would fill the memory with them."""
    far_limit: float = 0
    """The same in the host's memory."""

    def keep(self, length: int) -> None:
        """Keep the state after ``length`` tokens: all, or some that the last decode passed.

        Beyond the limit the oldest go to the host's memory. Where there is no room for them, the one goes whose loss
        leaves the smallest gap.
        """
        self.states.append(KeptState(self.state.checkpoint(length), min(self.chunked, length)))
        near = [s.checkpoint for s in self.states if not s.checkpoint.far]
        room = self.far_limit - sum(s.checkpoint.nbytes for s in self.states if s.checkpoint.far)
        while len(near) > NEWEST and sum(c.nbytes for c in near) > self.limit and near[0].nbytes <= room:
            room -= near[0].nbytes
            near.pop(0).send_away()
        while len(self.states) > NEWEST and self._near_bytes > self.limit:
            ends = [self.taken[-1].end if self.taken else 0, *(s.length for s in self.states)]
            del self.states[min(range(len(self.states) - NEWEST), key=lambda n: ends[n + 2] - ends[n])]

    @property
    def _near_bytes(self) -> int:
        return sum(s.checkpoint.nbytes for s in self.states if not s.checkpoint.far)

    def pieces(self) -> list[Piece]:
        """All that is kept of it: what it was made of, the states since, and the last one."""
        length = len(self.state.tokens)
        states = list(self.states)
        if length > max((s.length for s in states), default=self.taken[-1].end if self.taken else 0):
            states.append(KeptState(self.state.checkpoint(), min(self.chunked, length)))
        new = [Piece(s.length, IN_CHUNKS if s.chunked == s.length else s.chunked, s.checkpoint) for s in states]
        return [*self.taken, *new]


@dataclass(frozen=True)
class _Spare:
    """A state that nobody uses. rows: of the tree's nodes, those that its keys and values equal, from the first on."""

    state: SequenceState
    rows: list[Rows | None]

    def held(self, path: Sequence[Node]) -> int:
        """How many of the path's first nodes need not be copied."""
        pairs = zip(self.rows, path, strict=False)
        return next(
            (i for i, (rows, node) in enumerate(pairs) if rows is not node.rows), min(len(self.rows), len(path))
        )


@dataclass(frozen=True)
class Worth:
    """Of a state. saved: tokens that would be computed again without it, times how likely they are wanted. per_byte:
    the same, among all texts, for each byte that it takes."""

    node: Node
    saved: float
    per_byte: float


def _fits(chunked: int, length: int, begin: int) -> bool:
    """Whether ``length`` tokens, ``chunked`` of them in chunks, took the way of a prompt whose steps begin there."""
    return chunked == min(length, begin)


class PrefixCache:
    """Kept sequences of one model, within budgets of bytes. Used by one thread."""

    def __init__(
        self, new_state: Callable[[], SequenceState], budget: int, cutting: Cutting = ON_CPU, far_budget: int = 0
    ) -> None:
        """budget: bytes that all that is kept may take together. cutting: how its prompts are computed. far_budget:
        bytes of the host's memory for what the budget of a GPU's doesn't hold."""
        self.cutting = cutting
        self._new_state = new_state
        self.budget = budget
        self.far_budget = far_budget
        self.clear()

    def clear(self) -> None:
        self.tree = PrefixTree()
        self._spare: list[_Spare] = []
        self._texts: list[Text] = []
        self._newest: list[Node] = []
        self._clock = 0

    def shared(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of ``ids`` some kept sequence begins with: at least those that can be reused."""
        return self.tree.shared(tuple(ids))

    def take(self, ids: Sequence[int], checkpoints: Iterable[int] = ()) -> tuple[CachedSequence, int]:
        """A sequence to continue for the prompt ``ids``, and how many of its tokens it already holds.

        The sequence's state holds exactly these tokens. It belongs to the caller until ``give_back``. checkpoints: as
        they are given to ``prefill_step``.
        """
        ids = tuple(ids)
        text = self._text(ids)
        node = self._reusable(ids, steps_begin(len(ids), checkpoints, self.cutting))
        if node is None:
            return self._sequence(self._new_state(), 0, (), text), 0
        path = node.path()
        self._touch(path, text)
        spare = max(self._spare, key=lambda spare: spare.held(path), default=None)
        if spare is None:
            spare = _Spare(self._new_state(), [])
        else:
            self._spare.remove(spare)
        assert node.checkpoint is not None
        spare.state.adopt(node.checkpoint, [n.rows for n in path[spare.held(path) :] if n.rows is not None])
        taken = tuple(Piece(n.end, n.way, n.checkpoint, n.rows) for n in path)
        return self._sequence(spare.state, node.chunked, taken, text), node.end

    def _sequence(self, state: SequenceState, chunked: int, taken: tuple[Piece, ...], text: Text) -> CachedSequence:
        limits = self.budget / 2, self.far_budget / 2
        return CachedSequence(state, [], chunked, taken, text, self.cutting, *limits)

    def give_back(self, sequence: CachedSequence) -> None:
        """Keep a sequence for later, then drop what is worth least until the budget holds."""
        state, text = sequence.state, sequence.text
        tokens = tuple(state.tokens)
        if tokens and self.budget > 0:
            copied = {id(piece.rows) for piece in sequence.taken}

            def copy(start: int, end: int) -> Rows:
                rows = state.rows(start, end)
                copied.add(id(rows))
                return rows

            pieces = sequence.pieces()
            path = self.tree.insert(tokens, pieces, copy, text)
            text.tokens = tokens
            self._touch(path, text)
            self._newest = _needed_next(path, pieces[max(0, len(sequence.taken) - 1) :])
            own = next((i for i, node in enumerate(path) if id(node.rows) not in copied), len(path))
            self._spare = [_Spare(state, [node.rows for node in path[:own]]), *self._spare]
        self._keep_to_budget()

    def restore(self, tree: PrefixTree) -> None:
        """Begin with what an engine before this one kept."""
        self.clear()
        self.tree = tree
        self._keep_to_budget()

    def most_valuable(self, budget: int) -> list[tuple[Node, bool]]:
        """Nodes and whether with their checkpoints: what is worth most within so many bytes, that first, parents before
        their children."""
        newest = set(map(id, self._newest))
        chosen: dict[int, tuple[Node, bool]] = {}
        for worth in sorted(self.worths(), key=lambda worth: (id(worth.node) not in newest, -worth.per_byte)):
            assert worth.node.checkpoint is not None
            path = [node for node in worth.node.path() if id(node) not in chosen]
            size = worth.node.checkpoint.nbytes + sum(node.rows_nbytes for node in path)
            if size <= budget:
                budget -= size
                chosen |= {id(node): (node, False) for node in path} | {id(worth.node): (worth.node, True)}
        return list(chosen.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, but for those in the host's memory; what sequences share counts once."""
        near = sum(node.nbytes - node.far_nbytes for node in self.tree.nodes())
        return near + sum(spare.state.nbytes for spare in self._spare)

    @property
    def far_nbytes(self) -> int:
        """Bytes of what is kept in the host's memory."""
        return sum(node.far_nbytes for node in self.tree.nodes())

    def __len__(self) -> int:
        """How many sequences are kept: ends that no other one goes on from."""
        return sum(not node.children for node in self.tree.nodes())

    def _reusable(self, ids: tuple[int, ...], begin: int) -> Node | None:
        """The last node that a prompt can go on from. Its tokens were computed as the prompt's would be; only a long
        answer is taken as it is."""
        best, longest = None, None
        for node in self.tree.beginnings(ids):
            if node.checkpoint is None:
                continue
            if _fits(node.chunked, node.end, begin):
                if best is None or node.end >= best.end:
                    best = node
            elif not node.children and (longest is None or node.end >= longest.end):
                longest = node
        held = best.end if best is not None else 0
        return longest if longest is not None and longest.end - held > LONG_ANSWER else best

    def _text(self, ids: tuple[int, ...]) -> Text:
        """The text that a prompt is the next request of."""
        self._clock += 1
        text, common = Text(), 0
        for known in self._texts:
            length = common_length(known.tokens, ids)
            if length > common and len(known.tokens) - length <= SAME_TEXT:
                text, common = known, length
        text.used = self._clock
        text.requests += 1
        others = sorted((t for t in self._texts if t is not text), key=lambda t: t.used, reverse=True)
        self._texts = [text, *others[: TEXTS - 1]]
        return text

    def _touch(self, path: Iterable[Node], text: Text) -> None:
        for node in path:
            node.text, node.request = text, text.requests

    def _keep_to_budget(self) -> None:
        """Drop what is worth nothing. Then send away what is worth least until the budget holds, and drop what is worth
        least of that until the host's holds.

        The last states of the last request save little, but to each keystroke: they go when nothing else is left.
        States that wait for a request save it a copy, nodes save it a prefill: they get half of the bytes at most.
        """
        newest = set(map(id, self._newest))
        for worth in self.worths():
            if worth.saved < WORTHLESS and id(worth.node) not in newest:
                self._drop(worth.node)
        del self._spare[SPARE:]
        while self.nbytes > self.budget:
            waiting = sum(spare.state.nbytes for spare in self._spare)
            if self._spare and (len(self._spare) > 1 or waiting > self.budget / 2):
                self._spare.pop()
            elif not self.far_budget or not self._send_away_least(newest):
                least = min(self.worths(), key=lambda worth: (id(worth.node) in newest, worth.per_byte))
                self._drop(least.node)
        while self.far_nbytes > self.far_budget:
            far = (worth for worth in self.worths() if worth.node.far_nbytes)
            self._drop(min(far, key=lambda worth: (id(worth.node) in newest, worth.per_byte)).node)

    def _send_away_least(self, newest: set[int]) -> int:
        """What is worth least of what isn't in the host's memory yet -> bytes, 0 when all is."""
        for worth in sorted(self.worths(), key=lambda worth: (id(worth.node) in newest, worth.per_byte)):
            if moved := worth.node.send_away():
                return moved
        return 0

    def _drop(self, node: Node) -> None:
        """Drop an end, or the state between others."""
        if not node.children:
            self.tree.remove(node)
        else:
            node.checkpoint = None

    def worths(self) -> list[Worth]:
        """What each state is worth, parents before their children.

        A text's last request counts full, the one before it half, then a third. So do texts, the one used last first:
        however long someone types in one document, another one doesn't lose more than its turn.
        """
        nodes = list(self.tree.nodes())
        texts = {id(node.text): node.text for node in nodes}
        newest_first = sorted(texts.values(), key=lambda text: text.used, reverse=True)
        age = {id(text): rank for rank, text in enumerate(newest_first, start=1)}
        before = {id(self.tree.root): 0}
        found = []
        for node in nodes:
            last = before[id(node.parent)]
            before[id(node)] = last if node.checkpoint is None else node.end
            if node.checkpoint is not None:
                size = node.checkpoint.nbytes + (0 if node.children else node.rows_nbytes)
                saved = (node.end - last) / (1 + node.text.requests - node.request)
                found.append(Worth(node, saved, saved / (age[id(node.text)] * max(1, size))))
        return found


def _needed_next(path: Sequence[Node], pieces: Sequence[Piece]) -> list[Node]:
    """Where a next request goes on that changes a prompt near its cursor: the states of its steps, and the one before.

    pieces: what the request went on from, and what it added.
    """
    lengths = {piece.end for piece in pieces}
    chunks = [node for node in path if node.way == IN_CHUNKS]
    return [*chunks[-1:], *(node for node in path[len(chunks) :] if node.end in lengths)]


def prefill_step(model: HybridModel, sequence: CachedSequence, ids: Sequence[int], checkpoints: Iterable[int]) -> int:
    """Compute the prompt's tokens up to the next cut, or the next few in steps; keep the state where it is wanted.

    Returns how many tokens were computed; 0 when the state holds all of ``ids``.
    """
    have, asked, cutting = len(sequence.state.tokens), tuple(checkpoints), sequence.cutting
    if have >= len(ids):
        return 0
    begin = steps_begin(len(ids), asked, cutting)
    if not _fits(sequence.chunked, have, begin):
        sequence.chunked = MIXED
    if have < begin:
        border = next(cut for cut in prefill_cuts(len(ids), asked, cutting) if cut > have)
        model.prefill(list(ids[have:border]), sequence.state)
        if sequence.chunked != MIXED:
            sequence.chunked = border
    else:
        border = min(have + model.max_rows, len(ids))
        _decode(model, sequence.state, ids[have:border])
    for length in sorted(kept_states(len(ids), asked, cutting)):
        if have < length <= border:
            sequence.keep(length)
    return border - have


def _decode(model: HybridModel, state: SequenceState, ids: Sequence[int]) -> None:
    """What a prefill of ``ids`` does, row by row."""
    before = state.last_hidden
    hidden = model.decode(ids, state)
    if model.config.mtp:
        model.mtp_fill(ids, torch.cat((before[None], hidden[:-1])), state)
