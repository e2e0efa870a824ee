"""Puts the instructions of a launch together, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.gguf.types import row_bytes
from server.kernel.buffers import BLOCK, MAX_ROWS, attention_parts, buffers, slices
from server.kernel.instructions import (
    Access,
    Attention,
    AttentionReduce,
    Barrier,
    Cost,
    DeltaRule,
    Embed,
    GateUp,
    Head,
    Input,
    Instruction,
    MtpInput,
    Project,
    Residual,
    Rows,
    Target,
    Verify,
)
from server.kernel.model import KernelModel
from server.kernel.tiles import GROUP_ROWS, TILE_ROWS, Matrix, Strip, split_by_bytes, split_evenly

ONE = Rows("one", 1)
BEHIND = Rows("behind", MAX_ROWS)
RINGS = ("conv", "keys", "deltas", "decays")


class Builder:
    """Appends to `instructions`; each waits for all SMs to have finished the one before it."""

    def __init__(self, model: KernelModel, sms: int, rows: int, drafts: int, logits: bool) -> None:
        self.model = model
        self.config = model.config
        self.sms = sms
        self.verify = Rows("verify", rows)
        self.drafts = drafts
        self.logits = logits
        self.instructions: list[Instruction] = []
        self.buffers = buffers(model, sms, capacity=1, logits=logits)
        self.matrices = model.matrices()
        self.vectors = model.vectors()

    def carried(self) -> dict[str, str]:
        """What the buffers that are kept hold between launches."""
        return {name: _kept_value(name) for name, buffer in self.buffers.items() if buffer.kept}

    def build(self) -> None:
        if self.config.mtp:
            for step in range(max(1, self.drafts)):
                self._mtp_step(step)
        self._trunk()

    # ------------------------------------------------------------------------------------------------ parts

    def _trunk(self) -> None:
        c, layers = self.config, self.config.layers
        steps = [Access(f"mtp.best.{step}", f"draft {step}") for step in range(self.drafts)]
        norm = "blk.0.attn_norm.weight"
        self._add(
            Embed,
            "embed",
            self.verify,
            reads=[_kept("counts"), _kept("accepted"), _kept("given"), *steps],
            writes=[Access("tokens", "tokens"), *_residual("embedded", norm)],
            vectors=[norm],
            items=-(-c.hidden // BLOCK),
            table="token_embd.weight",
            norm=norm,
            drafts=self.drafts,
        )
        before = "embedded"
        for i, recurrent in enumerate(c.recurrent):
            last = i + 1 == layers
            following = "output_norm.weight" if last else f"blk.{i + 1}.attn_norm.weight"
            if recurrent:
                self._delta_net(i, before)
            else:
                self._attention(i, before, self.verify, self.verify.limit, 0)
            before = self._feed_forward(i, self.verify, following, low=last)
        self._head("lm_head", self.verify, self._matrix(self.model.output), before, None)
        self._add(
            Verify,
            "verify",
            self.verify,
            reads=[Access("best", "best"), Access("tokens", "tokens"), Access("counts", "counts", "own")],
            writes=[_kept("accepted"), Access("counts", "counts", "own")],
            items=1,
        )

    def _mtp_step(self, step: int) -> None:
        c, block, rows = self.config, f"blk.{self.config.layers}", ONE if step else BEHIND
        name = f"mtp.{step}"
        sources = (
            [Access("mtp.hidden", f"hidden {step - 1}"), Access(f"mtp.best.{step - 1}", f"draft {step - 1}")]
            if step
            else [_kept("hidden"), _kept("accepted")]
        )
        blocks = 2 * -(-c.hidden // BLOCK)
        norms = (f"{block}.nextn.enorm.weight", f"{block}.nextn.hnorm.weight")
        self._add(
            MtpInput,
            f"{name}.input",
            rows,
            reads=[_kept("counts"), *sources],
            writes=[Access("mtp.in", f"{name}.input"), Access("mtp.squares", f"{name}.input")],
            vectors=norms,
            items=blocks,
            step=step,
            table=self.model.draft_table,
            token_norm=norms[0],
            hidden_norm=norms[1],
        )
        norm = f"{block}.attn_norm.weight"
        self._residual_phase(
            f"{name}.project", rows, f"{block}.nextn.eh_proj.weight", Input("mtp.in", "mtp.squares", 2),
            f"{name}.input", None, f"{name}.x", norm,
        )  # fmt: skip
        self._attention(c.layers, f"{name}.x", rows, min(1, self.drafts), step)
        if self.drafts:
            before = self._feed_forward(c.layers, ONE, self.model.draft_norm, name)
            self._head(f"{name}.head", ONE, self._matrix(self.model.draft_output, draft=True), before, step)

    def _delta_net(self, i: int, before: str) -> None:
        c, block, d = self.config, f"blk.{i}", self.config.state_size
        outputs = ((f"{block}.attn_qkv.weight", Target(f"{block}.conv", ring=True)),
                   (f"{block}.attn_gate.weight", Target("z")),
                   (f"{block}.ssm_beta.weight", Target("gates")),
                   (f"{block}.ssm_alpha.weight", Target("gates", c.value_heads)))  # fmt: skip
        inner = [Access("z", f"{block}.z"), Access("gates", f"{block}.gates")]
        self._project(i, f"{block}.in", self.verify, outputs, [_kept(f"{block}.conv"), *inner])
        ring = [Access(f"{block}.{name}", _kept_value(f"{block}.{name}"), "disjoint") for name in RINGS[1:]]
        memory = Access(f"{block}.memory", "state", "own")
        mixed = [Access("mixed.in", f"{block}.mixed"), Access("mixed.squares", f"{block}.mixed")]
        self._add(
            DeltaRule,
            f"{block}.delta",
            self.verify,
            reads=[_kept("counts"), _kept(f"{block}.conv"), *inner, memory, *ring],
            writes=[memory, *ring, *mixed],
            vectors=[f"{block}.ssm_conv1d.weight", f"{block}.ssm_a", self.model.time_bias(i),
                     f"{block}.ssm_norm.weight"],
            items=c.value_heads * slices(d),
            layer=i,
            slices=slices(d),
        )  # fmt: skip
        self._residual_phase(
            f"{block}.out", self.verify, f"{block}.ssm_out.weight",
            Input("mixed.in", "mixed.squares", c.value_heads), f"{block}.mixed", before, f"{block}.middle",
            f"{block}.post_attention_norm.weight",
        )  # fmt: skip

    def _attention(self, i: int, before: str, rows: Rows, queries: int, step: int) -> None:
        c, block = self.config, f"blk.{i}"
        name = f"mtp.{step}" if i == c.layers else block
        parts = attention_parts(c.kv_heads, self.sms)
        widths = {"attn_q": 2 * c.heads * c.head_dim, "attn_k": c.kv_heads * c.head_dim, "attn_v": 0}
        if not queries:
            del widths["attn_q"]
        outputs, column = [], 2 * c.heads * c.head_dim if not queries else 0
        for part, width in widths.items():
            outputs.append((f"{block}.{part}.weight", Target("qkv", column)))
            column += width
        qkv = Access("qkv", f"{name}.qkv")
        self._project(i, f"{name}.in", rows, outputs, [qkv])
        cache = [Access(f"{block}.{kv}", _kept_value(f"{block}.{kv}"), "disjoint") for kv in "kv"]
        partial = [Access("parts", f"{name}.parts"), Access("parts.stats", f"{name}.parts")] if queries else []
        norms = [f"{block}.attn_q_norm.weight", f"{block}.attn_k_norm.weight"]
        self._add(
            Attention,
            f"{name}.attention",
            rows,
            reads=[_kept("counts"), qkv, *cache],
            writes=[*cache, *partial],
            vectors=norms if queries else norms[1:],
            items=c.kv_heads * parts,
            per_position=4 * c.kv_heads * c.head_dim if queries else 0,
            layer=i,
            step=step,
            queries=queries,
            parts=parts,
        )
        if not queries:
            return
        out = ONE if rows.kind != "verify" else rows
        self._add(
            AttentionReduce,
            f"{name}.reduce",
            out,
            reads=[_kept("counts"), qkv, *partial],
            writes=[Access("mixed.in", f"{name}.mixed")],
            items=-(-c.heads * c.head_dim // BLOCK),
            step=step,
            parts=parts,
        )
        self._residual_phase(
            f"{name}.out", out, f"{block}.attn_output.weight", Input("mixed.in"), f"{name}.mixed", before,
            f"{name}.middle", f"{block}.post_attention_norm.weight",
        )  # fmt: skip

    def _feed_forward(self, i: int, rows: Rows, following: str, name: str = "", low: bool = False) -> str:
        """-> the value of the residual behind it."""
        block = f"blk.{i}"
        name = name or block
        pair = Strip((self._matrix(f"{block}.ffn_gate.weight"), self._matrix(f"{block}.ffn_up.weight")), BLOCK)
        self._weights(
            GateUp,
            f"{name}.gate_up",
            rows,
            (pair,),
            Input("x.in", "x.squares", 1),
            reads=_normed(f"{block}.post_attention_norm.weight"),
            writes=[Access("ffn.in", f"{name}.ffn")],
        )
        self._residual_phase(
            f"{name}.down", rows, f"{block}.ffn_down.weight", Input("ffn.in"), f"{name}.ffn", f"{name}.middle",
            f"{name}.x", following, low,
        )  # fmt: skip
        return f"{name}.x"

    # ------------------------------------------------------------------------------------------------ phases

    def _project(
        self, i: int, name: str, rows: Rows, outputs: Sequence[tuple[str, Target]],
        writes: list[Access],
    ) -> None:  # fmt: skip
        self._weights(
            Project,
            name,
            rows,
            tuple(self._strip(tensor) for tensor, _ in outputs),
            Input("x.in", "x.squares", 1),
            reads=[*_normed(f"blk.{i}.attn_norm.weight"), *([_kept("counts")] if outputs[0][1].ring else [])],
            writes=writes,
            targets=tuple(target for _, target in outputs),
        )

    def _residual_phase(
        self, name: str, rows: Rows, tensor: str, input: Input, value: str, before: str | None, after: str, norm: str,
        low: bool = False,
    ) -> None:  # fmt: skip
        """before: the value of the residual that it adds to, None: it adds to nothing."""
        reads = [Access(input.buffer, value), *([Access(input.squares, value)] if input.squares else [])]
        if before is not None:
            reads.append(Access("x", before, "own"))
        self._weights(
            Residual,
            name,
            rows,
            (Strip((self._matrix(tensor),), BLOCK),),
            input,
            reads=reads,
            writes=[*_residual(after, norm), *([Access("x.low", norm)] if low else [])],
            vectors=[norm],
            add=before is not None,
            norm=norm,
            low=low,
        )

    def _head(self, name: str, rows: Rows, matrix: Matrix, before: str, step: int | None) -> None:
        """The output matrix reads its input in 16 bits: rounded to 8 it made most of a launch's whole error. What a
        draft head gets wrong is only a draft."""
        norm = "output_norm.weight" if step is None else self.model.draft_norm
        reads = [*_normed(norm), Access("x", before)]
        if step is None:
            reads.append(Access("x.low", norm))
            writes = [_kept("hidden"), Access("best", "best")]
            writes += [Access("logits", "logits")] if self.logits else []
        else:
            writes = [Access("mtp.hidden", f"hidden {step}"), Access(f"mtp.best.{step}", f"draft {step}")]
        self._weights(
            Head,
            name,
            rows,
            (Strip((matrix,), GROUP_ROWS),),
            Input("x.in", "x.squares", 1, "x.low" if step is None else ""),
            reads=reads,
            writes=writes,
            norm=norm,
            step=step,
            logits=self.logits and step is None,
        )

    def _strip(self, tensor: str) -> Strip:
        """A matrix whose outputs are left in float32. One with few rows (a gate for each value head) has the smallest
        groups: it isn't padded much, and its wide rows aren't spread over many SMs."""
        matrix = self._matrix(tensor)
        return Strip((matrix,), GROUP_ROWS if matrix.rows >= GROUP_ROWS else TILE_ROWS)

    def _matrix(self, tensor: str, draft: bool = False) -> Matrix:
        rows, columns = self.matrices[tensor]
        return Matrix(tensor, self.model.types[tensor], self.model.draft_rows if draft else rows, columns, draft)

    def _weights(
        self, kind: type[Instruction], name: str, rows: Rows, strips: tuple[Strip, ...], input: Input,
        reads: list[Access], writes: list[Access], **more: Any,
    ) -> None:  # fmt: skip
        self._add(
            kind,
            name,
            rows,
            reads=reads,
            writes=[*writes, Access("sums", name, "handed")],
            items=sum(strip.tiles for strip in strips),
            strips=strips,
            input=input,
            **more,
        )

    def _add(
        self, kind: type[Instruction], name: str, rows: Rows, *, reads: list[Access], writes: list[Access], items: int,
        vectors: Sequence[str] = (), per_position: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        counts = _kept("counts")
        if rows.kind == "behind" and counts not in reads:  # how many they are
            reads = [counts, *reads]
        strips = more.get("strips")
        assert strips is None or isinstance(strips, tuple)
        weights = sum(m.rows * row_bytes(m.type, m.columns) for strip in strips or () for m in strip.matrices)
        accesses = [access for access in (*reads, *writes) if access.share != "handed"]
        state = sum(self._bytes(access, rows) for access in accesses if self.buffers[access.buffer].kept)
        scratch = sum(self._bytes(access, rows) for access in accesses) - state
        if strips:  # sums of shared groups, about one an SM, written and read
            scratch += 2 * 4 * self.sms * rows.limit * max(len(s.matrices) * s.group_rows for s in strips)
        state += sum(4 * self.vectors[name] for name in vectors)
        if isinstance(table := more.get("table"), str):
            state += rows.limit * row_bytes(self.model.types[table], self.config.hidden)
        self.instructions.append(
            kind(
                name=name,
                rows=rows,
                waits=(Barrier(self.instructions[-1].name),) if self.instructions else (),
                reads=tuple(reads),
                writes=tuple(writes),
                vectors=tuple(vectors),
                ranges=split_by_bytes(strips, self.sms) if strips else split_evenly(items, self.sms),
                items=items,
                cost=Cost(weights, state, per_position, scratch),
                **more,
            )
        )

    def _bytes(self, access: Access, rows: Rows) -> int:
        """What one access moves: whole memories, otherwise the rows it is about."""
        buffer = self.buffers[access.buffer]
        if access.buffer.endswith((".memory", "counts")) or "best" in access.buffer:
            return buffer.nbytes
        if access.buffer.endswith((".k", ".v")):  # one position; those that are read are counted apart
            return rows.limit * buffer.nbytes // 2
        return rows.limit * buffer.row_bytes


def _residual(value: str, norm: str) -> list[Access]:
    """The residual and what the next matrix needs of it: x · norm with scales, and the sums of x²."""
    return [Access("x", value, "own"), *_normed(norm)]


def _normed(norm: str) -> list[Access]:
    return [Access("x.in", norm), Access("x.squares", norm)]


def _kept(buffer: str) -> Access:
    return Access(buffer, _kept_value(buffer))


def _kept_value(buffer: str) -> str:
    """Rings, caches and memories hold the same kind of thing before and after a launch."""
    return "state" if buffer.startswith("blk.") else buffer
