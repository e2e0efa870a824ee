"""The first passes of a freshly loaded model: they set up the kernels and say how fast it is on how many threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from server.model.finite import check_numbers
from server.threads.chooser import ThreadChooser, thread_counts

if TYPE_CHECKING:
    from server.model.hybrid import HybridModel

FIRST, TOKENS, ROWS = 16, 64, (1, 4)
"""Tokens of the very first prefill, of a measured one (a whole chunk: a part of one would say too low a rate), and rows
of the decodes after it."""
SLOW_SECONDS = 0.5
"""A model whose first prefill needs more processor time is not measured any further: starting would take too long."""


@dataclass(frozen=True)
class Measured:
    """prefill_rate: tokens per second, of a machine that is not busy. The choosers' units: a prefilled token, and a
    cycle without drafts.

    complete: no count was left out because others kept its processors busy.
    """

    prefill_rate: float
    prefill: ThreadChooser
    decode: ThreadChooser
    complete: bool


def warm_up(model: HybridModel, threads: int, free: Callable[[], int]) -> Measured:
    """Run the model on at most ``threads`` threads; only counts that give the same bits become a choice.

    Raises NotNumbers.

    free: processors that others leave, which more threads are not tried on.
    """
    torch.set_num_threads(1)  # so that this thread's own time tells a large model from a busy machine
    began = time.thread_time()
    ids = [i % model.config.vocab for i in range(TOKENS + max(ROWS))]
    check_numbers(model.logits(model.prefill(ids[:FIRST], model.new_state())[-1:]))
    seconds = time.thread_time() - began
    if seconds > SLOW_SECONDS:
        torch.set_num_threads(threads)
        only = {threads: seconds / FIRST}
        return Measured(FIRST / seconds, ThreadChooser(only, free), ThreadChooser({threads: seconds}, free), True)
    check_numbers(*_run(model, ids)[0])
    prefill: dict[int, float] = {}
    decode: dict[int, float] = {}
    results: dict[int, list[Tensor]] = {}
    most = min(threads, free())
    for count in reversed(thread_counts(most)):
        torch.set_num_threads(count)
        results[count], prefill_seconds, own_seconds, decode_seconds = _run(model, ids)
        if all(map(torch.equal, results[count], results[most])):
            prefill[count], decode[count] = prefill_seconds / TOKENS, decode_seconds
    choosers = ThreadChooser(prefill, free), ThreadChooser(decode, free)
    # The last run was on one thread, whose own time doesn't hold that of other programs.
    seconds = min(own_seconds / TOKENS, *prefill.values())
    return Measured(1 / seconds, *choosers, complete=most == threads)


def _run(model: HybridModel, ids: list[int]) -> tuple[list[Tensor], float, float, float]:
    """Everything a prefill and decodes compute, the prefill's seconds, those of this thread, the fastest decode's."""
    state = model.new_state()
    began, own = time.perf_counter(), time.thread_time()
    results = [model.prefill(ids[:TOKENS], state)]
    prefilled, own = time.perf_counter(), time.thread_time() - own
    times = []
    for rows in ROWS:
        start = time.perf_counter()
        hidden = model.decode(ids[TOKENS : TOKENS + rows], state)
        results += [hidden, model.logits(hidden)]
        times.append(time.perf_counter() - start)
        state.rollback(1)
    return [*results, state.memory], prefilled - began, own, min(times)
