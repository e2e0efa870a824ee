"""What runs a model and why: every reason against the GPU is told, and with the kernel's launches the engine serves."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import EXACT, KERNEL_LIKE, SMS, Small, load
from tiny_model import seldom_end, write_tiny_model

from server import engine as engine_module
from server import executor
from server.engine import Engine
from server.executor import Choice, choose, gpu_memory
from server.gguf.reader import ModelFile
from server.kernel.arithmetic import Arithmetic
from server.kernel.errors import KernelCompileError, KernelFault
from server.kernel.interpreter import Interpreter
from server.kernel.memory import memory_plan
from server.kernel.model import KernelModel
from server.kernel.plan import Plan
from server.kernel.sequence import Buffers
from server.kernel.weights import Weights
from server.request import FinishedEvent, GenerationRequest, SamplingParams, TextEvent
from server.serving.generation import Generation

CONTEXT = 512
H200 = SimpleNamespace(name="Made-up H200", major=9, minor=0, multi_processor_count=132)
REQUIRE_TRITON = executor.require_triton
SAMPLED = SamplingParams(temperature=1.0, seed=3, top_p=0.95)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_tiny_model(folder / "tiny.gguf", seed=3, context_length=CONTEXT, edit=seldom_end)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with a card that runs the kernel; what a test changes of it counts."""
    card = SimpleNamespace(properties=H200, free=10**11, made=[])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: card.properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (card.free, 2 * 10**11))
    monkeypatch.setattr(executor, "require_gpu", lambda: None)
    monkeypatch.setattr(executor, "require_compiler", lambda: None)
    monkeypatch.setattr(executor, "require_triton", lambda: None)
    monkeypatch.setattr(executor, "compile_kernel", lambda *about: card.made.append(about[1:]))
    return card


# ---------------------------------------------------------------------------------------------------- choosing


def reason(path: Path, **more: Any) -> str:
    choice = choose(ModelFile.open(path), **more)
    assert choice.kernel is None
    assert choice.text.startswith("torch on the CPU: ")
    assert "\n" not in choice.text
    return choice.text


def test_the_kernel_is_chosen_where_it_runs_and_says_what_it_takes(path: Path, gpu: SimpleNamespace) -> None:
    choice = choose(ModelFile.open(path))
    assert choice.kernel is not None
    assert choice.text.startswith("decode kernel on Made-up H200: ")
    assert f"a context of {CONTEXT} tokens: " in choice.text
    assert "for the kernel's weights and buffers" in choice.text
    assert choice.text.endswith("100.0 GB free")
    assert gpu.made == []
    assert choose(ModelFile.open(path), make=True).kernel is not None
    assert gpu.made == [(132, 90, 1), (132, 90, 2)]


def test_without_a_gpu_it_is_the_cpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "needs an NVIDIA GPU, and there is none" in reason(path)


def test_a_gpu_of_another_kind_is_named(path: Path, gpu: SimpleNamespace) -> None:
    gpu.properties = SimpleNamespace(**{**vars(H200), "major": 7})
    assert "the GPU's compute capability is 7.0" in reason(path)


def test_too_little_memory_is_told_in_numbers(path: Path, gpu: SimpleNamespace) -> None:
    file = ModelFile.open(path)
    kernel = choose(file).kernel
    assert kernel is not None
    gpu.free = gpu_memory(file, kernel, 132, CONTEXT, resident=False).total
    assert choose(file).kernel is not None
    gpu.free -= 1
    text = reason(path)
    assert f"on Made-up H200 a context of {CONTEXT} tokens needs 2.2 GB (" in text
    assert text.endswith("2.2 GB are free")


def test_a_context_that_the_memory_limits_is_what_fits_and_both_numbers_are_told(
    tmp_path: Path, gpu: SimpleNamespace
) -> None:
    file = ModelFile.open(write_tiny_model(tmp_path / "long.gguf", context_length=262_144))
    whole = choose(file)
    assert whole.kernel is not None
    assert whole.context is None
    gpu.free = gpu_memory(file, whole.kernel, 132, 20_480, resident=False).total
    assert choose(file).context == 20_480
    assert "a context of 20480 tokens, of the model's 262144, fits: " in choose(file).text
    gpu.free -= 1
    assert choose(file).context == 19_456
    gpu.free = gpu_memory(file, whole.kernel, 132, 4096, resident=False).total - 1
    assert "a context of 4096 tokens needs" in choose(file).text
    assert choose(file).kernel is None


def test_matrices_are_on_the_gpu_a_second_time_where_nothing_is_lost_by_it(path: Path, gpu: SimpleNamespace) -> None:
    file = ModelFile.open(path)
    kernel = choose(file).kernel
    assert kernel is not None
    once, twice = (gpu_memory(file, kernel, 132, CONTEXT, resident=resident) for resident in (False, True))
    assert once.total < twice.total
    assert once.prefill < twice.prefill
    gpu.free = twice.total
    assert (choose(file).resident, choose(file).context) == (True, None)
    gpu.free -= 1
    assert (choose(file).resident, choose(file).context) == (False, None)


def test_a_gpu_that_is_there_and_can_not_be_used_is_a_reason(
    path: Path, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: out of memory\nCompile with more to see more")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert reason(path).endswith("the GPU can't be used: CUDA error: out of memory")


def test_a_missing_compiler_and_what_it_cannot_compile_are_reasons(
    path: Path, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(text: str) -> Callable[..., None]:
        def fail(*_: Any) -> None:
            raise KernelCompileError(text)

        return fail

    monkeypatch.setattr(executor, "compile_kernel", fails("it doesn't compile\nsay line 3"))
    assert choose(ModelFile.open(path)).kernel is not None, "doctor doesn't compile"
    assert "it doesn't compile say line 3" in reason(path, make=True)
    monkeypatch.setattr(executor, "require_compiler", fails("there is no CUDA compiler: pip install"))
    assert "there is no CUDA compiler: pip install" in reason(path)


def test_what_prompts_need_and_is_missing_is_a_reason(
    tmp_path: Path, path: Path, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "require_triton", REQUIRE_TRITON)
    there = [None]
    monkeypatch.setattr(executor.importlib.util, "find_spec", lambda name: there[0] if name == "triton" else object())
    assert "prompts need Triton there" in reason(path)
    there[0] = object()  # type: ignore[call-overload]
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(executor.shutil, "which", lambda name: None)
    assert "needs a C compiler: install gcc" in reason(path)
    monkeypatch.setattr(executor.shutil, "which", lambda name: "/usr/bin/gcc")
    monkeypatch.setattr(executor.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "needs Python's headers" in reason(path)
    (tmp_path / "Python.h").touch()
    assert choose(ModelFile.open(path)).kernel is not None


def test_a_model_that_the_kernel_cannot_run_is_told_why(tmp_path: Path, gpu: SimpleNamespace) -> None:
    wide = write_tiny_model(tmp_path / "m.gguf", conv_kernel=5)
    assert "its convolution has 5 taps" in reason(wide)


def test_gpu_memory_holds_a_whole_context_and_the_draft_head(path: Path, gpu: SimpleNamespace) -> None:
    file = ModelFile.open(path)
    model = choose(file).kernel
    assert model is not None
    memory, more = (gpu_memory(file, model, 132, length) for length in (CONTEXT, 2 * CONTEXT))
    c = model.config
    each = 2 * (sum(not r for r in c.recurrent) + c.mtp) * c.kv_heads * c.head_dim * 2
    assert more.sequence - memory.sequence == each * CONTEXT * 3 // 2
    assert more.kept - memory.kept == each * CONTEXT
    assert more.kernel - memory.kernel == each * CONTEXT
    assert more.prefill == memory.prefill
    assert memory.kernel > memory_plan(model, 132, CONTEXT).total


# ---------------------------------------------------------------------------------------------------- serving


class OnLaunches:
    """An engine whose kernel is the interpreter, in float64. fault: what the next launch raises."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, arithmetic: Arithmetic = EXACT) -> None:
        self.small: Small = load(path, arithmetic, None)
        self.fault: Exception | None = None
        self.plans: list[Plan] = []
        self.failed = 0
        monkeypatch.setattr(executor, "GPU", torch.device("cpu"))
        monkeypatch.setattr(executor, "GPU_DTYPE", arithmetic.dtype)
        monkeypatch.setattr(executor, "GpuKernel", self)
        monkeypatch.setattr(engine_module, "gpu_cache_bytes", lambda model: 10**8)
        self.engine = Engine(path, choice=Choice(self.small.model, "the interpreter"), on_failure=self.on_failure)

    def on_failure(self) -> None:
        self.failed += 1

    def from_file(self, file: ModelFile, model: KernelModel, device: torch.device, draft_ids: Any) -> "OnLaunches":
        """In place of a GpuKernel's."""
        weights = Weights(file, model, self.small.interpreter.arithmetic.dtype, device, draft_ids)
        self.interpreter = Interpreter(model, weights, self.small.interpreter.arithmetic, SMS)
        self.sms, self.new_buffers = SMS, self.interpreter.new_buffers
        return self

    def prepare(self) -> None:
        assert not self.plans

    def run(self, plan: Plan, at: Buffers) -> None:
        if self.fault is not None:
            raise self.fault
        self.plans.append(plan)
        self.interpreter.run(plan, at)


@pytest.fixture
def served(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnLaunches]:
    on = OnLaunches(path, monkeypatch)
    yield on
    on.engine.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(37 * i * i + 11 * i + 5 + seed) % 250 for i in range(length)]


def submit(engine: Engine, ids: list[int], max_tokens: int = 24, **more: Any) -> Generation:
    return engine.submit(GenerationRequest(ids=ids, max_tokens=max_tokens, **more))


def collect(generation: Generation) -> tuple[str, FinishedEvent]:
    *texts, finished = list(generation)
    assert isinstance(finished, FinishedEvent)
    return "".join(event.text for event in texts if isinstance(event, TextEvent)), finished


def run(engine: Engine, ids: list[int], max_tokens: int = 24, **more: Any) -> tuple[str, FinishedEvent]:
    return collect(submit(engine, ids, max_tokens, **more))


def test_the_engine_says_what_computes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "draftline.engine"):
        engine = Engine(path, choice=Choice(None, "torch on the CPU: a reason"), threads=1)
    engine.close()
    assert engine.executor == "torch on the CPU: a reason"
    assert "executor: torch on the CPU: a reason" in caplog.text


def test_the_kernel_is_warm_at_every_depth_before_the_engine_is_there(served: OnLaunches) -> None:
    rows = [*range(1, 9), 16]  # the head's drafts, and as many as are copied
    assert {(plan.rows, plan.logits) for plan in served.plans} == {(r, x) for r in rows for x in (False, True)}


def test_answers_are_those_of_the_model_in_torch(path: Path, served: OnLaunches) -> None:
    cpu = Engine(path, dtype=torch.float64, threads=1)
    for sampling in (SamplingParams(), SAMPLED, replace(SAMPLED, repetition_penalty=1.2)):
        for speculate in (True, False):
            begun = len(served.plans)
            ours = run(served.engine, prompt(90), 40, sampling=sampling, speculate=speculate)
            theirs = run(cpu, prompt(90), 40, sampling=sampling, speculate=speculate)
            assert ours[0] == theirs[0]
            assert ours[1].reason == theirs[1].reason
            assert len(served.plans) - begun == ours[1].counters.cycles > 0
            assert (ours[1].counters.drafted > 0) == speculate
    cpu.close()


def test_an_answer_reuses_what_another_left_and_goes_on_as_if_it_had_not(served: OnLaunches) -> None:
    first, second = prompt(200), [*prompt(200), *prompt(30, 9)]
    fresh = run(served.engine, second)
    served.engine._cache.clear()
    run(served.engine, first, 20)
    again = run(served.engine, second)
    assert again[0] == fresh[0]
    assert again[1].counters.reused >= 128


def test_what_launches_rounded_is_computed_again_unless_it_is_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that goes on after a short answer has the state of a fresh one, but for where its chunks were cut."""
    on = OnLaunches(path, monkeypatch, KERNEL_LIKE)
    cache = on.engine._cache
    run(on.engine, prompt(100), 12)
    longer = list(cache._spare[0].state.tokens)
    assert len(longer) == 111
    assert run(on.engine, [*longer, 7], 0)[1].counters.reused == 100
    warm = cache._spare[0].state
    cache.clear()
    run(on.engine, [*longer, 7], 0)
    cold = cache._spare[0].state
    torch.testing.assert_close(warm.memory, cold.memory, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(warm.last_hidden, cold.last_hidden, rtol=1e-4, atol=1e-5)
    on.engine.close()


def test_the_answer_ends_where_the_context_does(served: OnLaunches) -> None:
    for length in (CONTEXT - 10, CONTEXT - 1):
        _, finished = run(served.engine, prompt(length), 50)
        assert (finished.reason, finished.counters.generated) == ("length", CONTEXT - length)


def test_a_cancelled_answer_leaves_a_sequence_that_others_continue(served: OnLaunches) -> None:
    whole, _ = run(served.engine, prompt(120), 60)
    served.engine._cache.clear()
    generation = submit(served.engine, prompt(120), 300)
    for _ in generation:
        generation.cancel()
    sequence = served.engine._cache._spare[0]
    assert sequence.state.tokens[:120] == prompt(120)
    text, finished = run(served.engine, prompt(120), 60)
    assert text == whole
    assert finished.counters.reused == 120


def test_a_completion_in_the_middle_of_a_background_answer_changes_neither(served: OnLaunches) -> None:
    alone = [run(served.engine, prompt(80), 60)[0], run(served.engine, prompt(50, 3), 10)[0]]
    served.engine._cache.clear()
    background = submit(served.engine, prompt(80), 60, priority="background")
    events = iter(background)
    begun = next(events)
    assert isinstance(begun, TextEvent)
    assert run(served.engine, prompt(50, 3), 10)[0] == alone[1]
    rest = "".join(event.text for event in events if isinstance(event, TextEvent))
    assert begun.text + rest == alone[0]


def test_a_fault_ends_all_requests_with_what_to_do_and_then_the_engine(served: OnLaunches) -> None:
    served.fault = KernelFault("the decode kernel broke off: an error")
    first = submit(served.engine, prompt(40), priority="background")
    second = submit(served.engine, prompt(40, 1), priority="background")
    _, finished = collect(first)
    assert finished.reason == "error"
    assert "the GPU failed, and the engine ends; ask again, and a new one starts" in finished.detail
    assert "CUDA_VISIBLE_DEVICES=" in finished.detail
    assert "KernelFault: the decode kernel broke off: an error" in finished.detail
    assert collect(second)[1].reason == "error"
    served.engine._worker.join(10)
    assert served.failed == 1
    with pytest.raises(RuntimeError, match="closed"):
        submit(served.engine, prompt(5))


def test_an_error_that_breaks_the_device_ends_the_engine_and_any_other_only_its_request(
    served: OnLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.fault = ValueError("a small thing")
    assert "goes on (ValueError: a small thing)" in run(served.engine, prompt(40))[1].detail
    served.fault = None
    assert run(served.engine, prompt(40))[1].reason in ("length", "end")
    assert served.failed == 0

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(served.engine.model, "wait", broken)
    assert "the GPU failed" in run(served.engine, prompt(40, 5))[1].detail
    served.engine._worker.join(10)
    assert served.failed == 1


def test_a_fault_while_loading_is_the_constructors_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KernelFault("no launch")

    monkeypatch.setattr(engine_module, "load_on_gpu", fail)
    with pytest.raises(KernelFault, match="no launch"):
        Engine(path, choice=Choice(load(path, EXACT, None).model, "a kernel"))
