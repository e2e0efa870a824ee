"""One object that owns a model: requests in, events out.

One worker thread owns the model, the sequences and the cache. It works in steps (a prefill chunk or a cycle)
and asks the scheduler before each one, which is where priorities, cancellation and timeouts take effect.
"""

# ruff: noqa: N818 - the names say what is wrong

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from server.cache.borders import ON_GPU
from server.cache.disk import DISK_BYTES, CacheFile, identity
from server.cache.prefix import PrefixCache
from server.executor import DRAFT_ROWS, Choice, gpu_cache_bytes, host_cache_bytes, load_on_gpu, warm_up_gpu
from server.gguf.errors import UselessWeights
from server.gguf.reader import ModelFile
from server.kernel.errors import KernelFault
from server.model.chat_template import ChatTemplate, ChatTemplateError
from server.model.finite import NotNumbers
from server.model.hybrid import HybridModel
from server.model.linear import can_halve
from server.model.tokenizer import Tokenizer
from server.request import FinishedEvent, FinishReason, GenerationRequest
from server.serving.answer import Answer, PrefillRate
from server.serving.generation import Generation
from server.serving.scheduler import RANKS, Job, Scheduler
from server.serving.sequence_bytes import sequence_bytes
from server.speculation.copies import CopyTimes
from server.speculation.depth import DepthController
from server.speculation.launches import Launches
from server.speculation.sampling import check_sampling
from server.threads.chooser import physical_cores
from server.threads.free_cpus import FreeCpus
from server.threads.warm_up import Measured, warm_up

CACHE_BYTES = 320 * 2**20
"""For kept sequences and checkpoints: several documents with the embedded model, in a process below 1.2 GB."""
CACHE_SEQUENCES = 4
"""A model with large states gets a cache for so many of them at least."""
RUNNING_BYTES = 320 * 2**20
"""For the sequences of requests that have begun, of each priority; one at least runs whatever it takes."""
AGAIN = (
    "ask again, and a new one starts; if it happens again, report it with the engine's log, and start the engine with "
    "CUDA_VISIBLE_DEVICES= to run on the CPU"
)

log = logging.getLogger("draftline.engine")


class ContextOverflow(ValueError):
    """A prompt that leaves no room for an answer. have: its tokens; limit: what the context holds, the model's
    or what fits into the GPU's memory."""

    def __init__(self, have: int, limit: int) -> None:
        self.have = have
        self.limit = limit
        super().__init__(
            f"the prompt has {have} tokens, but the context holds {limit} and the answer needs at least "
            f"one: shorten the prompt by {have - limit + 1} tokens"
        )


class InvalidRequest(ValueError):
    """A request that can't be served as it stands; the text says what is wrong with it."""


class Engine:
    """Serves generations of one model file. Every public method may be called from any thread.

    context_length: tokens. prefill_rate: tokens per second, measured by a short warm-up and then by every prefill.
    """

    model: HybridModel
    tokenizer: Tokenizer
    context_length: int
    executor: str
    """What computes, and why, in one line."""
    chat: ChatTemplate | None
    """The model's own; None where it has none, or a broken one."""

    def __init__(
        self,
        model_file: Path,
        *,
        choice: Choice | None = None,
        cache_bytes: int | None = None,
        cache_dir: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        free_cpus: Callable[[], int] | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Load the model. Raises ModelFileError; KernelFault when the GPU fails at once.

        choice: of `executor.choose`; torch on the CPU unless said otherwise, which threads, dtype and free_cpus are
        for. on_failure: called on the worker's thread when it has failed for good and takes no more requests.

        cache_bytes: what kept sequences may take, 0 for none. cache_dir: where they outlive the engine, in disk_bytes
        at most; nowhere unless said. threads: of the arithmetic at most; one for each
        physical core unless said otherwise. free_cpus: processors that others leave at the moment; a FreeCpus that
        has watched for a while knows more than a new one.
        """
        self._file = model_file
        self._choice = choice or Choice(None, "torch on the CPU")
        self._on_failure = on_failure
        self._cache_bytes = cache_bytes
        self._cache_dir = cache_dir
        self._disk_bytes = disk_bytes
        self._cache_file: CacheFile | None = None
        self._threads = threads or physical_cores()
        self._dtype = dtype
        self._free_cpus = free_cpus or FreeCpus()
        self._scheduler: Scheduler
        self._controller = DepthController()
        self._copy_times = CopyTimes()
        self._rate: PrefillRate
        self._measured: Measured | None = None
        self._launches: Launches | None = None
        self._cache: PrefixCache
        self._loaded = threading.Event()
        self._failure: BaseException | None = None
        self._worker = threading.Thread(target=self._run, name="draftline-engine", daemon=True)
        self._worker.start()
        self._loaded.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def prefill_rate(self) -> float:
        return self._rate.stated

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request.

        Raises ContextOverflow, InvalidRequest, InvalidSampling; EngineBusy; RuntimeError after ``close``.
        """
        vocabulary = self.model.config.vocab
        if not request.ids:
            raise InvalidRequest("the prompt is empty: it needs at least one token")
        if min(request.ids) < 0 or max(request.ids) >= vocabulary:
            raise InvalidRequest(f"the prompt has a token outside the model's vocabulary of {vocabulary}")
        if request.prediction and (min(request.prediction) < 0 or max(request.prediction) >= vocabulary):
            raise InvalidRequest(f"the prediction has a token outside the model's vocabulary of {vocabulary}")
        if request.max_tokens < 0:
            raise InvalidRequest(f"max_tokens is {request.max_tokens}, but it must be ≥ 0")
        if len(request.ids) >= self.context_length:
            raise ContextOverflow(len(request.ids), self.context_length)
        check_sampling(request.sampling)
        tokens = min(len(request.ids) + request.max_tokens, self.context_length)
        needed = sequence_bytes(self._empty, tokens, aside=self._launches is not None)
        return self._scheduler.submit(request, needed).generation

    def close(self) -> None:
        """End what runs and waits as cancelled, and the worker with it."""
        self._scheduler.close()
        self._worker.join()

    def _run(self) -> None:
        torch.set_num_threads(min(self._threads, self._free_cpus()))
        try:
            with torch.inference_mode():
                self._load()
        except BaseException as error:
            self._failure = error
            self._loaded.set()
            return
        self._loaded.set()
        reason, detail = "cancelled", "the engine was closed"
        try:
            with torch.inference_mode():
                while (job := self._scheduler.next()) is not None:
                    self._serve(job)
                self._keep_on_disk()
        except BaseException as error:
            log.exception("the engine's worker failed")
            reason, detail = "error", f"the engine failed and must be started again ({_line(error)})"
        self._scheduler.close()
        for job in self._scheduler.left():
            self._finish(job, "cancelled" if reason == "cancelled" else "error", detail)
        if reason == "error":
            self._on_failure()

    def _load(self) -> None:
        file = ModelFile.open(self._file)
        self.tokenizer = Tokenizer.from_file(file)
        self.chat = self._chat_template(file)
        self.executor = self._choice.text
        log.info("executor: %s", self.executor)
        try:
            if self._choice.kernel is None:
                self._load_on_cpu(file)
            else:
                self._load_on_gpu(file, self._choice)
        except NotNumbers as error:
            raise UselessWeights(self._file, "what the model computes is not numbers") from error
        self._empty = self.model.new_state()
        room = RUNNING_BYTES if self._launches is None else gpu_cache_bytes(self.model) // len(RANKS)
        self._scheduler = Scheduler(room)
        if self._cache_dir is not None:
            self._find_on_disk(self._cache_dir)

    def _chat_template(self, file: ModelFile) -> ChatTemplate | None:
        try:
            return ChatTemplate.from_file(file, self.tokenizer)
        except ChatTemplateError as error:
            log.info("no chat: %s", error)
            return None

    def _find_on_disk(self, folder: Path) -> None:
        """Begin with what an engine before this one kept. Nothing that goes wrong keeps this one from starting."""
        began = time.perf_counter()
        arithmetic = (self._dtype, self._choice.kernel is not None, self.model.device.type, self.model.dtype)
        try:
            self._cache_file = CacheFile(folder, identity(self._file, *arithmetic), self._disk_bytes)
            tree = self._cache_file.load(self.model.new_state, self.model.config.vocab, self._cache.budget)
            self._cache.restore(tree)
        except Exception:
            log.exception("kept prefixes in %s are ignored", folder)
            self._cache.clear()
        else:
            log.info("%d kept prefixes found in %s, in %.2f s", len(self._cache), folder, time.perf_counter() - began)

    def _keep_on_disk(self) -> None:
        if self._cache_file is None:
            return
        try:
            self._cache_file.save(self._cache.most_valuable(self._disk_bytes))
        except Exception:
            log.exception("kept prefixes can't be written")

    def _load_on_gpu(self, file: ModelFile, choice: Choice) -> None:
        self._launches = load_on_gpu(file, choice, self.tokenizer.end_tokens)
        self.model = self._launches.model
        self.context_length = choice.context or self.model.config.context_length
        self._rate = PrefillRate(warm_up_gpu(self._launches))
        budget = gpu_cache_bytes(self.model) if self._cache_bytes is None else self._cache_bytes
        self._cache = PrefixCache(self.model.new_state, budget, ON_GPU, host_cache_bytes() if budget else 0)

    def _load_on_cpu(self, file: ModelFile) -> None:
        self.model = HybridModel.load(
            file,
            dtype=self._dtype,
            draft_rows=DRAFT_ROWS,
            draft_also=self.tokenizer.end_tokens,
            half_weights=can_halve("cpu", self._dtype),
        )
        self.context_length = self.model.config.context_length
        budget = self._cache_bytes
        if budget is None:
            budget = max(CACHE_BYTES, CACHE_SEQUENCES * self.model.new_state().nbytes)
        self._cache = PrefixCache(self.model.new_state, budget)
        self._measured = warm_up(self.model, self._threads, self._free_cpus)
        self._rate = PrefillRate(self._measured.prefill_rate)

    def _serve(self, job: Job) -> None:
        """One step of a job, or its end."""
        detail = ""
        reason: FinishReason | None
        try:
            if job.answer is None:
                job.answer = self._answer(job)
            reason = job.ending(time.perf_counter()) or job.answer.step()
            if reason is None:
                return
            job.answer.close(stopped=reason == "stop", show=reason != "cancelled")
        except Exception as error:
            log.exception("a request failed")
            if job.answer is not None:
                job.answer.discard()
            if self._is_broken(error):
                self._finish(job, "error", f"the GPU failed, and the engine ends; {AGAIN} ({_line(error)})")
                raise
            reason, detail = "error", f"the engine failed on this request and goes on ({_line(error)})"
        self._finish(job, reason, detail)
        if (
            self._measured is not None
            and not self._measured.complete
            and self._free_cpus() >= self._threads
            and self._scheduler.load == (0, 0)
        ):
            # The machine was busy when the engine started, and isn't any more.
            self._measured = warm_up(self.model, self._threads, self._free_cpus)

    def _is_broken(self, error: Exception) -> bool:
        """Whether nothing can be computed any more: a GPU's context doesn't survive a fault."""
        if isinstance(error, KernelFault):
            return True
        try:
            self.model.wait()
        except RuntimeError:
            return True
        return False

    def _finish(self, job: Job, reason: FinishReason, detail: str) -> None:
        answer = job.answer or self._answer(job)
        self._scheduler.remove(job)
        job.generation.put(FinishedEvent(reason, answer.counters(), detail))

    def _answer(self, job: Job) -> Answer:
        return Answer(
            self.model,
            self.tokenizer,
            self._cache,
            job.request,
            context_length=self.context_length,
            controller=self._controller,
            copy_times=self._copy_times,
            prefill_rate=self._rate,
            choosers=(self._measured.prefill, self._measured.decode) if self._measured is not None else None,
            launches=self._launches,
            submitted=job.submitted,
            show=job.generation.put,
        )


def _line(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
