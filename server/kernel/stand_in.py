"""A sequence that stands for one in the middle of an answer: what launches are measured on."""

from __future__ import annotations

import torch

from server.kernel.buffers import COUNTS
from server.kernel.device import DeviceBuffers
from server.kernel.sequence import Buffers
from server.kernel.source import FEW_ROWS


def fill(at: Buffers, vocab: int, seed: int = 1) -> None:
    """Numbers of sound sizes into all that a sequence keeps, on any device: nothing is measured on zeros."""
    generator = torch.Generator(at["hidden"].device).manual_seed(seed)
    for name, x in at.items():
        if not name.startswith("blk.") and name != "hidden":
            continue
        if name.endswith(".decays"):
            x.uniform_(0.5, 1.0, generator=generator)
        elif name.endswith(".memory"):
            x.normal_(0, 0.05, generator=generator)
        else:
            for part in x:  # keys and values of a long context, one head at a time
                part.normal_(0, 0.5, generator=generator)
    at["accepted"].fill_(min(100, vocab - 1))
    at["given"].copy_((torch.arange(len(at["given"])) * 37 + 5) % vocab)


def places(at: Buffers, context: int, rows: int, external: bool) -> torch.Tensor:
    """What `counts` hold before a launch at `context` positions when the last launch kept all of its `rows` rows, the
    most that there can be to fold and to catch up with. external: the host gives the drafts."""
    kept = min(rows, context)
    wanted = {"length": context, "fold": kept, "behind": max(1, kept), "external": int(external)}
    numbers = [wanted[name] for name in COUNTS]
    return torch.tensor(numbers, dtype=at["counts"].dtype, device=at["counts"].device)


def put(at: Buffers, counts: torch.Tensor, rows: int) -> None:
    """Sets the counts (of `places`) again without waiting for the device, so that the next launch doesn't either."""
    at["counts"].copy_(counts)
    if isinstance(at, DeviceBuffers):  # the launch needn't ask the device how many rows are behind
        at.last_rows = min(rows, FEW_ROWS)
