"""One answer, cycle by cycle: draft, verify, accept, roll back, catch up.

Between cycles the newest token is sampled but not yet in the trunk; the sequence state holds verified tokens
only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.speculation.copies import Copies
from server.speculation.depth import DepthController
from server.speculation.drafter import Draft, Drafter
from server.speculation.sampling import Sampler
from server.speculation.verify import verify

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.state import SequenceState


@dataclass(frozen=True)
class Cycle:
    """What a cycle gave: 1 to 1 + drafted tokens of the answer. copied: its drafts were those of a prediction."""

    tokens: list[int]
    drafted: int
    accepted: int
    copied: bool = False


class Decoder:
    """Decodes one answer on a prefilled ``state``.

    drafter: None decodes one token a cycle. copies: drafts of a prediction, which go before the drafter's where they
    pay. clock: seconds, for what decides about drafts alone; the text depends on none of them.
    """

    def __init__(
        self,
        model: HybridModel,
        state: SequenceState,
        sampler: Sampler,
        end_tokens: Collection[int],
        drafter: Drafter | None = None,
        controller: DepthController | None = None,
        clock: Callable[[], float] = time.perf_counter,
        copies: Copies | None = None,
    ) -> None:
        self._model = model
        self._state = state
        self._sampler = sampler
        self._end_tokens = end_tokens
        self._drafter = drafter
        self._controller = controller or DepthController()
        self._clock = clock
        self._copies = copies
        self._last = -1

    def first(self) -> int:
        """The answer's first token, from the hidden of the prompt's last one."""
        logits = self._model.logits(self._state.last_hidden[None])
        self._last = verify(logits, (), self._sampler)[-1]
        if self._copies is not None:
            self._copies.push([self._last])
        return self._last

    def cycle(self, limit: int) -> Cycle:
        """The next 1 to ``limit`` tokens of the answer. An end token is the last of its cycle.

        The trunk grows by as many tokens as the cycle returns: the last token before it and the accepted
        drafts.
        """
        began = self._clock()
        copied = self._copies.propose(limit - 1, self._controller.rate) if self._copies is not None else []
        draft = Draft(copied) if copied else self._draft(limit - 1)
        before = self._state.last_hidden
        rows = [self._last, *draft.tokens]
        hidden = self._model.decode(rows, self._state)
        tokens = verify(self._model.logits(hidden), draft.tokens, self._sampler, self._end_tokens)
        kept = len(tokens)
        self._state.rollback(kept)
        if self._drafter is not None:
            self._drafter.settle(rows[:kept], before, hidden[:kept])
        self._last = tokens[-1]
        accepted = common(tokens, draft.tokens)
        seconds = self._clock() - began
        if self._copies is not None:
            self._copies.push(tokens)
        if self._copies is not None and copied:
            self._copies.observe(len(copied), seconds)
        else:
            self._controller.observe(draft.confidences, accepted, seconds)
        return Cycle(tokens, len(draft.tokens), accepted, bool(copied))

    def finish(self) -> None:
        """Leave the state ready to be kept: the MTP rows of all its tokens are there."""
        if self._drafter is not None:
            self._drafter.finish()

    def _draft(self, limit: int) -> Draft:
        if self._drafter is None or limit < 1 or not self._controller.another(()):
            return Draft()
        return self._drafter.propose(self._last, limit, self._controller.another)


def common(tokens: Sequence[int], drafts: Sequence[int]) -> int:
    """How many drafts came true."""
    count = 0
    while count < min(len(tokens), len(drafts)) and tokens[count] == drafts[count]:
        count += 1
    return count
