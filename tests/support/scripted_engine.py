"""An engine without a model or torch, for tests of the process around it: what it says is decided by the prompt.

Tokens are characters. It answers "abc…" without end, or what stands between « and » in the prompt, one character a
cycle, one request after the other, and honours stop rule, limit, timeout and cancellation as the real one does.
"""

from __future__ import annotations

import queue
import re
import string
import threading
import time
from collections.abc import Callable
from itertools import cycle, islice

from server.model.chat_template import ChatTemplate, RenderedChat
from server.request import Counters, FinishedEvent, FinishReason, GenerationRequest, PrefillEvent, TextEvent
from server.serving.generation import Generation
from server.serving.scheduler import EngineBusy

ANSWER = string.ascii_lowercase + "\n"
CHAT = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
    "[assistant|{% if not enable_thinking %}no thoughts|{% endif %}"
)


class ScriptedTokenizer:
    end_tokens = frozenset({0})
    hidden_tokens = frozenset({0})
    longest = 4

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_chat(self, rendered: RenderedChat) -> list[int]:
        return self.encode(rendered.text)

    def special(self, name: str) -> int:
        return 0x110000 + sum(name.encode())


class ContextOverflow(ValueError):  # noqa: N818
    def __init__(self, have: int, limit: int) -> None:
        super().__init__(f"the prompt has {have} tokens, but the context holds {limit}")
        self.have, self.limit = have, limit


class ScriptedEngine:
    """token_s: seconds a cycle takes. A prompt that contains "fail!" makes the generation fail, and one that
    contains "break!" the engine with it (``on_failure`` is called); one that contains "busy!" is one too many, and one
    that contains "slowly!" takes long to read."""

    def __init__(self, token_s: float = 0.0, context_length: int = 4096) -> None:
        self.tokenizer = ScriptedTokenizer()
        self.context_length = context_length
        self.prefill_rate = 1000.0
        self.executor = "a script"
        self.chat = ChatTemplate(CHAT)
        self.submitted: list[GenerationRequest] = []
        self.finished: list[FinishedEvent] = []
        self.on_failure: Callable[[], None] = lambda: None
        self._token_s = token_s
        self._queue: queue.Queue[tuple[GenerationRequest, Generation, threading.Event] | None] = queue.Queue()
        self._last: list[int] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Generation:
        if len(request.ids) >= self.context_length:
            raise ContextOverflow(len(request.ids), self.context_length)
        if "busy!" in "".join(chr(i) for i in request.ids if i < 0x110000):
            raise EngineBusy("too many requests run or wait: ask again when some have ended")
        cancelled = threading.Event()
        generation = Generation(cancelled.set)
        self.submitted.append(request)
        self._queue.put((request, generation, cancelled))
        return generation

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(5)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            request, generation, cancelled = item
            finished = self._answer(request, generation, cancelled)
            self.finished.append(finished)
            generation.put(finished)
            if finished.detail == "told to break":
                self.on_failure()
                return

    def _answer(self, request: GenerationRequest, generation: Generation, cancelled: threading.Event) -> FinishedEvent:
        began = time.monotonic()
        pairs = zip(request.ids, self._last, strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._last), len(request.ids)))
        reused = min(shared, len(request.ids) - 1)
        self._last = request.ids
        text, shown, count = "", 0, 0
        prompt = "".join(chr(i) for i in request.ids if i < 0x110000)
        if "break!" in prompt:
            return FinishedEvent("error", Counters(), "told to break")
        if "fail!" in prompt:
            return FinishedEvent("error", Counters(), "told to fail")
        if "slowly!" in prompt and request.progress:
            for part in (1, 2):
                generation.put(PrefillEvent(part * len(request.ids) // 2, len(request.ids)))
        told = re.search("«(.*)»", prompt, re.DOTALL)
        reason: FinishReason = "length" if told is None or request.max_tokens < len(told[1]) else "end"
        for character in islice(cycle(ANSWER) if told is None else told[1], request.max_tokens):
            if cancelled.wait(self._token_s) if self._token_s else cancelled.is_set():
                reason = "cancelled"
                break
            if request.timeout_ms is not None and time.monotonic() - began > request.timeout_ms / 1000:
                reason = "timeout"
                break
            text += character
            count += 1
            keep = request.stop(text) if request.stop else None
            if keep is not None:
                text, reason = text[: max(keep, shown)], "stop"
                break
            settled = request.stop.settled(text) if request.stop else len(text)
            if settled > shown:
                generation.put(TextEvent(text[shown:settled], 1))
                shown = settled
        if len(text) > shown:
            generation.put(TextEvent(text[shown:], 1))
        spent = (time.monotonic() - began) * 1000
        counters = Counters(
            prompt_tokens=len(request.ids),
            shared=shared,
            prefilled=len(request.ids) - reused,
            reused=reused,
            generated=count,
            drafted=2 * count,
            accepted=count,
            copied=len(request.prediction),
            cycles=count,
            ttft_ms=spent / max(count, 1),
            total_ms=spent,
            tokens_per_second=1000 * count / spent if spent else 0.0,
        )
        return FinishedEvent(reason, counters)
