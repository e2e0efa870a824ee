"""One request from its first prefill chunk to its last token, in steps that the engine can stop between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from server.cache.prefix import CachedSequence, PrefixCache, prefill_step
from server.cache.tree import MIXED
from server.request import Counters, FinishReason, GenerationRequest, PrefillEvent, TextEvent
from server.serving.answer_text import AnswerText
from server.serving.progress import PrefillProgress
from server.speculation.copies import Copies, CopyTimes
from server.speculation.decoder import Decoder
from server.speculation.depth import DepthController
from server.speculation.drafter import MtpDrafter
from server.speculation.launches import LaunchDecoder, Launches
from server.speculation.sampling import Sampler
from server.threads.chooser import ThreadChooser

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel
    from server.model.tokenizer import Tokenizer


TYPICAL = 128
"""Tokens of a chunk whose speed says something about others: in shorter ones the fixed costs prevail."""
DRAFT_COST = 0.15
"""About what a drafted row adds to a cycle, as a share of one without drafts: to compare cycles of any depth."""


WRONG_BY = 1.6
"""A stated prefill rate that is wrong by this factor is stated anew."""


class PrefillRate:
    """Tokens per second of prefill: a running estimate over chunks large enough to be typical, and what is said of it.

    Clients make their prompts as long as the stated rate allows. One that followed every measurement would move the
    beginning of the prompt from request to request, and nothing of it could be reused: so what is stated stays until
    the estimate says that it is wrong by far.
    """

    def __init__(self, value: float) -> None:
        """value: a first measurement, which the first typical chunk replaces."""
        self.value = self.stated = value
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if seconds > 0:
            self._tokens = 0.8 * self._tokens + tokens
            self._seconds = 0.8 * self._seconds + seconds
            self.value = self._tokens / self._seconds
            if not 1 / WRONG_BY < self.value / self.stated < WRONG_BY:
                self.stated = self.value


class Answer:
    """The running state of one request. ``step`` until it gives a reason, then ``close``; or ``discard``."""

    def __init__(
        self,
        model: HybridModel,
        tokenizer: Tokenizer,
        cache: PrefixCache,
        request: GenerationRequest,
        *,
        context_length: int,
        controller: DepthController,
        copy_times: CopyTimes,
        prefill_rate: PrefillRate,
        choosers: tuple[ThreadChooser, ThreadChooser] | None = None,
        launches: Launches | None = None,
        submitted: float,
        show: Callable[[PrefillEvent | TextEvent], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """choosers: of threads for prefill and decoding, where a CPU computes. launches: of the decode kernel, where
        there is one; else the model decodes."""
        self._model = model
        self._cache = cache
        self._request = request
        self._controller = controller if request.speculate else DepthController(max_depth=0)
        self._copy_times = copy_times
        self._end_tokens = tokenizer.end_tokens
        self._text = AnswerText(tokenizer, request.stop)
        self._room = min(request.max_tokens, context_length - len(request.ids))
        self._rate = prefill_rate
        self._prefill_threads = choosers[0] if choosers else None
        self._decode_threads = choosers[1] if choosers else None
        self._launches = launches
        self._submitted = submitted
        self._show = show
        self._clock = clock
        self._sequence: CachedSequence | None = None
        self._progress: PrefillProgress | None = None
        self._decoder: Decoder | LaunchDecoder | None = None
        self._shared = self._reused = self._prefilled = self._generated = 0
        self._drafted = self._accepted = self._cycles = self._decoded = 0
        self._copied = self._copied_accepted = 0
        self._prefill_seconds = self._decode_seconds = 0.0
        self._first_at: float | None = None

    def step(self) -> FinishReason | None:
        """One prefill chunk or one cycle; the reason if the answer is complete."""
        if self._decoder is not None:
            return self._cycle(self._decoder)
        if self._sequence is None:
            self._shared = self._cache.shared(self._request.ids)
            self._sequence, self._reused = self._cache.take(self._request.ids, self._request.checkpoints)
            if self._request.progress:
                self._progress = PrefillProgress(len(self._request.ids), self._show, self._clock)
        self._prefill(self._sequence)
        if self._progress is not None:
            self._progress.reached(len(self._sequence.state.tokens))
        if len(self._sequence.state.tokens) < len(self._request.ids):
            return None
        if self._room < 1:
            return "length"
        self._decoder = self._start_decoding(self._sequence)
        return self._add([self._decoder.first()])

    def close(self, *, stopped: bool, show: bool = True) -> None:
        """Show the rest of the text and leave the sequence in the cache."""
        if show and (event := self._text.finish(stopped)):
            self._show(event)
        if self._decoder is not None:
            self._decoder.finish()
        if self._sequence is not None:
            if self._launches is not None and self._cycles:
                self._sequence.chunked = MIXED  # the kernel's steps are other arithmetic than the model's
            self._cache.give_back(self._sequence)
        # The cache alone decides what stays in memory: whoever still holds this answer holds no sequence with it.
        self._sequence = self._decoder = None

    def discard(self) -> None:
        """Forget the sequence: after an error nobody knows what its state holds."""
        self._sequence = self._decoder = None

    def counters(self) -> Counters:
        now = self._clock()
        first_at = now if self._first_at is None else self._first_at
        return Counters(
            prompt_tokens=len(self._request.ids),
            shared=self._shared,
            prefilled=self._prefilled,
            reused=self._reused,
            generated=self._generated,
            drafted=self._drafted,
            accepted=self._accepted,
            copied=self._copied,
            copied_accepted=self._copied_accepted,
            cycles=self._cycles,
            ttft_ms=1000 * (first_at - self._submitted),
            total_ms=1000 * (now - self._submitted),
            prefill_tokens_per_second=_rate(self._prefilled, self._prefill_seconds),
            tokens_per_second=_rate(self._decoded, self._decode_seconds),
        )

    def _prefill(self, sequence: CachedSequence) -> None:
        left = len(self._request.ids) - len(sequence.state.tokens)
        if self._prefill_threads is not None:
            self._prefill_threads.begin(measured=left >= TYPICAL)
        began = self._clock()
        computed = prefill_step(self._model, sequence, self._request.ids, self._request.checkpoints)
        self._model.wait()
        seconds = self._clock() - began
        if computed >= TYPICAL:
            if self._prefill_threads is not None:
                self._prefill_threads.end(seconds / computed)
            self._rate.add(computed, seconds)
        if computed:
            self._prefilled += computed
            self._prefill_seconds += seconds

    def _start_decoding(self, sequence: CachedSequence) -> Decoder | LaunchDecoder:
        model, state = self._model, sequence.state
        sampler = Sampler(self._request.sampling, self._request.ids, model.config.vocab)
        predicted = self._request.prediction if self._request.speculate else ()
        copies = Copies(predicted, self._copy_times) if predicted else None
        deciding = (self._controller, self._clock, copies)
        if self._launches is not None:
            return LaunchDecoder(self._launches, state, sampler, self._end_tokens, *deciding)
        drafter = MtpDrafter(model, state) if model.config.mtp else None
        return Decoder(model, state, sampler, self._end_tokens, drafter, *deciding)

    def _cycle(self, decoder: Decoder | LaunchDecoder) -> FinishReason | None:
        if self._decode_threads is not None:
            self._decode_threads.begin()
        began = self._clock()
        cycle = decoder.cycle(self._room - self._generated)
        seconds = self._clock() - began
        if self._decode_threads is not None:
            self._decode_threads.end(seconds / (1 + DRAFT_COST * cycle.drafted))
        self._decode_seconds += seconds
        self._cycles += 1
        self._drafted += cycle.drafted
        self._accepted += cycle.accepted
        if cycle.copied:
            self._copied += cycle.drafted
            self._copied_accepted += cycle.accepted
        self._decoded += len(cycle.tokens)
        return self._add(cycle.tokens)

    def _add(self, tokens: list[int]) -> FinishReason | None:
        if self._first_at is None:
            self._first_at = self._clock()
        reason: FinishReason | None = None
        for token in tokens:
            if token in self._end_tokens:
                reason = "end"
                break
            self._generated += 1
            if self._text.push(token):
                reason = "stop"
                break
            if self._generated >= self._room:
                reason = "length"
                break
        if reason is None and (event := self._text.take()):
            self._show(event)
        return reason


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
