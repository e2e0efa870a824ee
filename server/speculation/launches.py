"""Decoding with launches of the decode kernel: what `decoder.py` does in torch, a cycle in one launch.

The kernel has one set of buffers, and they hold one answer at a time. An answer takes them when it has its first cycle;
when another one is served in between, what the buffers hold is set aside on the device and brought back later, to the
bit.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from server.kernel.buffers import MAX_DRAFTS
from server.kernel.cycle import Cycles
from server.kernel.sequence import Buffers, bring_back, hand_back, roll_back, set_aside, settle, take_over
from server.speculation.copies import Copies
from server.speculation.decoder import Cycle, common
from server.speculation.depth import DepthController
from server.speculation.sampling import NotFiniteLogits, Sampler
from server.speculation.verify import verify

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import SequenceState


class Launches:
    """The launches of one model, with the buffers that its answers take turns in."""

    def __init__(self, model: HybridModel, cycles: Cycles) -> None:
        """model: prefills what launches continue. cycles: on buffers that were made with logits, for as many positions
        as a sequence may have and a launch's rows."""
        self.model = model
        self.cycles = cycles
        # Weak: an answer that failed is dropped by its owner, and nobody wants to know what it left in the buffers.
        self._holder: weakref.ref[LaunchDecoder] | None = None

    def hand_to(self, decoder: LaunchDecoder) -> bool:
        """Make the buffers this answer's; whether they were already."""
        holder = self._holder() if self._holder is not None else None
        if holder is decoder:
            return True
        if holder is not None:
            holder.step_aside()
        self._holder = weakref.ref(decoder)
        return False

    def release(self) -> None:
        """What the buffers hold is wanted no more."""
        self._holder = None


class LaunchDecoder:
    """Decodes one answer on a prefilled ``state``, as ``Decoder`` does.

    The state stays as the prompt left it until ``finish`` brings it up to date.
    """

    def __init__(
        self,
        launches: Launches,
        state: SequenceState,
        sampler: Sampler,
        end_tokens: Collection[int],
        controller: DepthController | None = None,
        clock: Callable[[], float] = time.perf_counter,
        copies: Copies | None = None,
    ) -> None:
        self._launches = launches
        self._model = launches.model
        self._cycles = launches.cycles
        self._state = state
        self._sampler = sampler
        self._end_tokens = end_tokens
        self._controller = controller or DepthController()
        self._clock = clock
        self._copies = copies
        self._processed = list(state.tokens)
        self._last = -1
        self._began = False
        self._aside: Buffers | None = None

    def first(self) -> int:
        """The answer's first token, from the hidden of the prompt's last one. Raises NotFiniteLogits."""
        logits = self._model.logits(self._state.last_hidden[None]).cpu()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # penalties aren't rounded to 16 bits
        self._last = verify(logits, (), self._sampler)[-1]
        if self._copies is not None:
            self._copies.push([self._last])
        return self._last

    def cycle(self, limit: int) -> Cycle:
        """The next 1 to ``limit`` tokens of the answer. An end token is the last of its cycle.

        Raises NotFiniteLogits; KernelFault when a launch goes wrong.
        """
        began = self._clock()
        self._take_buffers()
        copied = self._copies.propose(limit - 1, self._controller.rate) if self._copies is not None else []
        drafts = 0 if copied else self._depth(limit - 1)
        greedy = self._sampler.greedy and not self._sampler.penalised
        tokens, accepted = (self._best if greedy else self._sampled)(drafts, copied or None)
        self._processed += [self._last, *tokens[:-1]]
        self._last = tokens[-1]
        seconds = self._clock() - began
        if self._copies is not None:
            self._copies.push(tokens)
        if self._copies is not None and copied:
            self._copies.observe(len(copied), seconds)
        else:
            self._controller.observe([None] * drafts, accepted, seconds)
        return Cycle(tokens, drafts or len(copied), accepted, bool(copied))

    def finish(self) -> None:
        """Leave the state ready to be kept: it holds all verified tokens but the newest, and their MTP rows."""
        if not self._began:
            return
        self._take_buffers()
        behind = hand_back(self._cycles.at, self._model.config, self._state, self._processed)
        if behind.ids:
            self._model.mtp_fill(behind.ids, behind.hidden, self._state)
        self._launches.release()
        self._began = False

    def step_aside(self) -> None:
        """Leave the buffers to another answer, until this one's next cycle."""
        self._aside = set_aside(self._cycles.at)

    def _take_buffers(self) -> None:
        if self._launches.hand_to(self):
            return
        if self._aside is not None:
            bring_back(self._cycles.at, self._aside)
            self._aside = None
        else:
            take_over(self._cycles.at, self._model.config, self._state, self._last)
            self._began = True

    def _depth(self, limit: int) -> int:
        """How many drafts pay. All are made before one is verified, so nothing is known of them."""
        most = min(limit, MAX_DRAFTS) if self._model.config.mtp else 0
        depth = 0
        while depth < most and self._controller.another([None] * depth):
            depth += 1
        return depth

    def _best(self, drafts: int, given: Sequence[int] | None) -> tuple[list[int], int]:
        """Greedy: the device verifies. -> tokens, and how many of them were drafted."""
        tokens = self._cycles.cycle(drafts, given)
        if not bool(torch.isfinite(self._cycles.at["best"][: len(tokens), :, 0].amax(1)).all()):
            raise NotFiniteLogits
        kept = next((n for n, token in enumerate(tokens, start=1) if token in self._end_tokens), len(tokens))
        if kept < len(tokens):
            roll_back(self._cycles.at, kept)
        return tokens[:kept], min(len(tokens) - 1, kept)

    def _sampled(self, drafts: int, given: Sequence[int] | None) -> tuple[list[int], int]:
        """The host chooses from the logits, which are read back: its draws don't depend on the device."""
        drafted, logits = self._cycles.logits(drafts, given)
        tokens = verify(logits.cpu(), drafted, self._sampler, self._end_tokens)
        settle(self._cycles.at, tokens, len(logits))
        return tokens, common(tokens, drafted)
