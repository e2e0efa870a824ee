"""What must hold of whole answers, whoever runs the launches: text and state are the same whatever was drafted."""

import torch
from small_models import Small, prompt_of

from server.kernel.sequence import Buffers, count, folded_memory, hand_back, ring_slots, take_over
from server.model.hybrid import HybridModel

PROMPT = prompt_of(40)
LENGTH = 24


def reference_text(model: HybridModel, prompt: list[int], length: int) -> list[int]:
    """Greedy, one token at a time."""
    state = model.new_state()
    model.prefill(prompt[:-1], state)
    out = prompt[-1:]
    while len(out) <= length:
        out.append(int(model.logits(model.decode(out[-1:], state))[0].argmax()))
    return out[1:]


def recurrent(small: Small, at: Buffers) -> list[torch.Tensor]:
    """Memories, the rows of the last launch that they don't hold yet, and conv windows."""
    c, length, fold = small.model.config, count(at, "length"), count(at, "fold")
    kept, window = ring_slots(range(length - fold, length)), ring_slots(range(length - c.conv_kernel + 1, length))
    found = []
    for block in (f"blk.{i}" for i, is_recurrent in enumerate(c.recurrent) if is_recurrent):
        found += [at[f"{block}.memory"], at[f"{block}.conv"][window]]
        found += [at[f"{block}.{name}"][kept] for name in ("keys", "deltas", "decays")]
    return found


def folded(small: Small, at: Buffers) -> dict[str, torch.Tensor]:
    """Memories with the rows that they don't hold yet, as `hand_back` makes them."""
    c, length, fold = small.model.config, count(at, "length"), count(at, "fold")
    layers = (i for i, is_recurrent in enumerate(c.recurrent) if is_recurrent)
    return {f"blk.{i}.memory": folded_memory(at, i, range(length - fold, length)) for i in layers}


def cached(small: Small, at: Buffers, ready: int) -> list[torch.Tensor]:
    """Keys and values of the tokens that the trunk has processed, and the first `ready` of the MTP block's."""
    c, length = small.model.config, count(at, "length")
    lengths = {i: length for i, is_recurrent in enumerate(c.recurrent) if not is_recurrent}
    lengths |= {c.layers: ready} if c.mtp else {}
    return [at[f"blk.{i}.{kv}"][:, :rows] for i, rows in lengths.items() for kv in "kv"]


def check_text_and_state(
    small: Small,
    depths: tuple[int, ...],
    reference: bool = True,
    counts: tuple[int, ...] | None = None,
    length: int = LENGTH,
) -> None:
    """The same tokens and, to the bit, the same recurrent state and caches for every accepted count of every depth.

    counts: only these accepted counts. length: tokens of an answer.
    """
    longer, _, _ = small.generate(PROMPT, length + 16)
    if reference:
        assert reference_text(small.reference, PROMPT, length) == longer[:length]
    assert len(set(longer)) > 10, "a model that repeats itself would prove nothing"
    plain, vocab = {}, small.model.config.vocab
    for depth in depths:
        for right in range(depth + 1) if counts is None else counts:

            def oracle(done: int, cycle: int, depth: int = depth, right: int = right) -> list[int]:
                drafts = longer[done : done + depth]
                return [token if row < right else (token + 1) % vocab for row, token in enumerate(drafts)]

            text, at, kept = small.generate(PROMPT, length, 0, oracle)
            assert text == longer[: len(text)]
            assert set(kept) == {right + 1}
            if len(text) not in plain:
                plain[len(text)] = small.generate(PROMPT, len(text) + 1)[1]
            by_host = folded(small, at)
            small.cycles(at).cycle(0)  # folds in what the last launch kept
            assert all(torch.equal(memory, at[name]) for name, memory in by_host.items())
            expected, ready = plain[len(text)], count(at, "length") - count(at, "behind") + 1
            ours, theirs = (recurrent(small, x) + cached(small, x, ready) for x in (at, expected))
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def check_hand_back(small: Small, length: int) -> None:
    """Answer, hand back to the reference's state, take it over into fresh buffers and go on: the same text."""
    truth, _, _ = small.generate(PROMPT, length)
    at, state = small.start(PROMPT[:-1], PROMPT[-1])
    text = small.cycles(at).cycle(2, truth[:2])
    missing = hand_back(at, small.model.config, state, [*PROMPT, *text[:-1]])
    small.reference.mtp_fill(missing.ids, missing.hidden, state)
    again, _ = small.start(PROMPT[:-1], PROMPT[-1])
    take_over(again, small.model.config, state, text[-1])
    while len(text) < length:
        text += small.cycles(again).cycle(0)
    assert text[:length] == truth
