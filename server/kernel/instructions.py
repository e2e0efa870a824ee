"""The instructions of a cycle: what each reads and writes, what it waits for, what it costs, which SM does what.

Every SM runs all instructions in order, its own share of each. A value is what a buffer holds between two writes; its
name says what it means (that of a normed input is the norm's tensor), so a checker can tell a stale read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.kernel.tiles import Range, Strip

Share = Literal["all", "own", "disjoint", "handed"]
"""all: any SM may touch any part. own: an SM touches only parts that no other SM touches in this instruction. disjoint:
what is read and what is written lie at different positions of a ring or cache. handed: written by the SMs that
contribute to a shared group (`tiles.Shared`) and read by those that finish it, in the same instruction, in the order
that a counter for each SM gives."""


@dataclass(frozen=True)
class Access:
    """A read or a write of one buffer, and the value that is there (reads) or will be there (writes)."""

    buffer: str
    value: str
    share: Share = "all"


@dataclass(frozen=True)
class Barrier:
    """All SMs have finished the instruction `after` (and so every one before it)."""

    after: str


@dataclass(frozen=True)
class Cost:
    """Bytes that an instruction moves, each counted once however many SMs read it."""

    weights: int = 0
    """Matrices, as they lie in the file."""
    state: int = 0
    """Recurrent states, rings, small tensors: from and to device memory, like the weights."""
    per_position: int = 0
    """Keys and values, for each position of the context."""
    scratch: int = 0
    """What instructions hand to each other; it stays in the L2 cache."""

    def memory_bytes(self, context: int) -> int:
        """Bytes from and to device memory with `context` positions behind."""
        return self.weights + self.state + context * self.per_position


@dataclass(frozen=True)
class Rows:
    """How many rows: the verified ones, all T of them; those that the MTP head is behind, a count known when the
    launch begins, 1 to `limit`, newest first; or one (of the rows behind the newest)."""

    kind: Literal["verify", "behind", "one"]
    limit: int


@dataclass(frozen=True)
class Input:
    """A matrix' input: 32 int8 values and a scale at a time. Behind a norm the values are x · weight, and each
    consumer multiplies by 1 / sqrt(mean(x²) + eps), from the sums of squares that the producers left.

    segments: parts of a row that have a norm of their own (the heads of a delta-rule layer); 0 without a norm.
    low: a second buffer of int8 values, what the first rounding left, for the output matrix; its scales are those
    of the first over 254.
    """

    buffer: str
    squares: str = ""
    segments: int = 0
    low: str = ""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    name: str
    rows: Rows
    waits: tuple[Barrier, ...] = ()
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    vectors: tuple[str, ...] = ()
    """Small tensors that it reads: norms, gates, the convolution."""
    ranges: tuple[Range, ...]
    """For each SM its items; what an item is depends on the instruction."""
    items: int
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class Embed(Instruction):
    """Rows of the embedding for [the newest accepted token, the drafts] -> residual and first normed input.

    The drafts are the MTP head's (every SM finds the best rows itself) or those the host gives; `tokens` keeps them
    for verification. Items: blocks of 32 columns.
    """

    table: str
    norm: str
    drafts: int


@dataclass(frozen=True, kw_only=True)
class MtpInput(Instruction):
    """Both halves of the MTP block's input, embedding first: x · weight and the sums of x².

    Step 0 has the rows behind: row r is the token at position length - r with the trunk's hidden before it. A later
    step has one, the draft of the step before with that step's hidden. Items: blocks of 32 of the 2E columns.
    """

    step: int
    table: str
    token_norm: str
    hidden_norm: str


@dataclass(frozen=True, kw_only=True)
class WeightPhase(Instruction):
    """Streams matrices. Items: tiles in the order of the strips (see `tiles`)."""

    strips: tuple[Strip, ...]
    input: Input


@dataclass(frozen=True)
class Target:
    """Where a strip's outputs go: columns from `column` on of a buffer's rows; of a ring, at slots of positions."""

    buffer: str
    column: int = 0
    ring: bool = False


@dataclass(frozen=True, kw_only=True)
class Project(WeightPhase):
    """y = W x, float32, each strip to its target."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, kw_only=True)
class Residual(WeightPhase):
    """x ← x + W y (x ← W y where `add` is off), and x as the next matrix' input: x · norm and sums of x² by 32.

    low: what rounding to 8 bits left is handed on too.
    """

    add: bool
    norm: str
    low: bool


@dataclass(frozen=True, kw_only=True)
class GateUp(WeightPhase):
    """silu(gate) · up: both rows of an output are in the same group, so one SM has them."""


@dataclass(frozen=True, kw_only=True)
class Head(WeightPhase):
    """Logits of all or of the draft rows: each SM keeps its best row, the first of equals. The hidden rows, normed
    in full, are written too: the MTP head and the host read them. `best` is the slot of its result: the step of a
    draft head; `logits`: all of them are written as well.
    """

    norm: str
    step: int | None
    logits: bool


@dataclass(frozen=True, kw_only=True)
class DeltaRule(Instruction):
    """A Gated DeltaNet layer between its projections. Items: a value head's slices of up to 32 values, heads first.

    Per slice: S is read, the rows that the last cycle kept are folded in from the ring (S ← e^g S + k δᵀ, row by
    row as they were computed), S is written: once. Then every row of this cycle is computed from it as it goes
    (convolution, SiLU, l2 norms, gates, delta rule) and only its k, δ, e^g are written, to the ring.
    Output: o · ssm_norm · silu(z), and sums of o² per slice.
    """

    layer: int
    slices: int
    """Slices of a head."""


@dataclass(frozen=True, kw_only=True)
class Attention(Instruction):
    """Norm and rotation of queries and keys, new keys and values to the cache, and attention in parts: a part is a
    key head's chunk of positions, read once for all rows and query heads. Items: parts, key heads first.

    A row's chunks depend on its position alone (`chunk_positions`), so its sums don't depend on who is computed
    with it. queries: rows that attend; the others only leave their keys and values. 0: no row does.
    """

    layer: int
    step: int
    """Of an MTP layer's chain: its row stands at length + step."""
    queries: int
    parts: int
    """Parts of a key head at most."""


@dataclass(frozen=True, kw_only=True)
class AttentionReduce(Instruction):
    """The parts of a head together, in order of positions, times sigmoid(gate). Items: blocks of 32 of NH · HD."""

    step: int
    parts: int


@dataclass(frozen=True, kw_only=True)
class Verify(Instruction):
    """The best row of every position; the drafts that equal them are accepted, the next best row is the bonus token.
    Then the counts of the next cycle: length, rows to fold, rows behind. One SM does it. Items: 1."""


KV_GRANULE = 64


def chunk_positions(position: int, parts: int) -> int:
    """Positions of each part of the context of a row at `position`: whole multiples of KV_GRANULE, no more than
    `parts` parts. It changes every parts · KV_GRANULE positions; rows of a cycle that stand on both sides of a
    change are attended apart."""
    return KV_GRANULE * -(-(position + 1) // (KV_GRANULE * parts))
