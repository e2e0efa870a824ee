"""``draftline doctor``: what is installed, which model and executor would run and why, and whether the engine lives."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import math
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from server import __version__
from server.host_memory import available_memory
from server.models_known import EMBEDDED, ModelNotFound, asked_model, find_model, model_id
from server.process.attach import GO_BACK
from server.process.last_model import read_last
from server.process.lock import lock_holder
from server.process.memory import TooLittleMemory, check_memory
from server.process.places import Places, RuntimeDirectoryError, find_places
from server.process.probe import NoAnswer, probe

if TYPE_CHECKING:
    from server.gguf.reader import ModelFile

DISTRIBUTIONS = ("gguf", "tokenizers", "pygls", "starlette", "uvicorn", "httpx")

Finding = tuple[str, str, bool]
"""What was looked at, what was found, and whether that is all right."""


def run(model: str | None) -> int:
    """Print every finding; 0 when a completion would work, else 1."""
    name, why = _next_model(model)
    findings = [*_installation(), *_torch(), *_model(name, why), *_engine()]
    width = max(len(name) for name, _, _ in findings)
    for name, found, good in findings:
        print(f"{'  ' if good else '! '}{name:<{width}}  {found}")
    return 0 if all(good for _, _, good in findings) else 1


def _installation() -> Iterator[Finding]:
    yield "draftline", f"{__version__} in {Path(__file__).parent.parent}", True
    yield "python", f"{platform.python_version()} ({sys.executable}), {platform.platform()}", True
    for name in DISTRIBUTIONS:
        try:
            yield name, importlib.metadata.version(name), True
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed; install Draftline again", False


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield "torch", f"can't be imported: {error}; install Draftline again", False
        return
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads", True
    if not torch.cuda.is_available():
        built = "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
        yield "GPU", f"none: {built}", True
    else:
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            text = f"{card.name}, sm_{card.major}{card.minor}, {card.total_memory / 1e9:.1f} GB"
            yield f"GPU {index}", text, True


def _next_model(asked: str | None) -> tuple[str | None, str]:
    """The model of the next completion, and why it is that one."""
    if (name := asked_model(asked)) is not None:
        return name, "the default" if name == EMBEDDED else ""
    with contextlib.suppress(RuntimeDirectoryError, NoAnswer):
        places = find_places()
        health = asyncio.run(probe(places.socket)) if lock_holder(places.lock) else None
        if health is not None and health.status != "stopping":
            return (EMBEDDED, "the default") if health.model_id == EMBEDDED else (health.model, "the engine holds it")
        last = read_last(places).next
        if last not in (None, EMBEDDED):
            return last, f"it ran last; {GO_BACK}"
    return None, "the default"


def _model(name: str | None, why: str) -> Iterator[Finding]:
    """name: as asked for; why: what to say about that."""
    try:
        path = find_model(name)
    except ModelNotFound as error:
        yield "model", str(error), False
        return
    try:
        from server.gguf.errors import ModelFileError
        from server.gguf.reader import ModelFile
        from server.usable import Unusable, check_usable
    except (ImportError, OSError):
        yield "model", f"{path}, not looked at without torch", False
        return
    try:
        file = ModelFile.open(path)
        try:
            whole = check_usable(file)
            useless = None
        except Unusable as error:
            whole, useless = True, str(error)
        weights = sum(math.prod(info.shape) for info in file.tensors.values())
        types = Counter[str]()
        for info in file.tensors.values():
            types[info.type.name] += math.prod(info.shape)
        context = file.value("qwen35.context_length", int, 0)
    except ModelFileError as error:
        yield "model", str(error), False
        return
    kinds = ", ".join(name for name, _ in types.most_common(3))
    label = f"{model_id(path)} ({why})" if why else model_id(path)
    drafts = "with an MTP head" if any(".nextn." in tensor for tensor in file.tensors) else "without an MTP head"
    size = f"{path.stat().st_size / 1e6:.1f} MB, {weights / 1e6:.1f} M weights ({kinds}) {drafts}"
    yield "model", f"{label}: {path}", True
    yield "", f"{size}, context of {context} tokens", True
    if useless is not None:
        yield "", useless, False
    if not whole:
        yield "", "too large to look for damage here; the engine does when it loads it", True
    if file.metadata.get("draftline.synthetic") is True:
        yield "", "synthetic: its weights are random, so its answers mean nothing", True
    yield from _executor(file)


def _memory(file: ModelFile) -> Finding:
    try:
        check_memory(file)
    except TooLittleMemory as error:
        return "memory", str(error), False
    return "memory", f"{available_memory() / 1e9:.1f} GB available, enough for this model", True


def _executor(file: ModelFile) -> Iterator[Finding]:
    from server.executor import choose

    choice = choose(file)
    if choice.kernel is None:
        yield _memory(file)
    yield "executor", choice.text, True


def _engine() -> Iterator[Finding]:
    try:
        places = find_places()
    except RuntimeDirectoryError as error:
        yield "runtime", str(error), False
        return
    yield "runtime", str(places.runtime), True
    yield "log", str(places.log), True
    holder = lock_holder(places.lock)
    if holder is None:
        yield "engine", "not running; the first completion starts it", True
        return
    try:
        health = asyncio.run(probe(places.socket))
    except NoAnswer:
        yield "engine", f"process {holder} does not answer; end it with `draftline stop`", False
        return
    if health is None:
        yield "engine", f"process {holder} is just starting or ending; ask again", True
        return
    at_work = "1 request" if health.active == 1 else f"{health.active} requests"
    facts = f"process {health.pid}, version {health.version}, up {health.uptime_s:.0f} s, {at_work} at work"
    yield "engine", f"{health.status}: {facts}", True
    yield "", f"model {health.model}, {health.prefill_tokens_per_second:.0f} tokens/s prefill", True
    if health.executor:
        yield "", health.executor, True
    yield "", f"{places.socket} and {_url(places)}", True


def _url(places: Places) -> str:
    try:
        return str(json.loads(places.published.read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError):
        return "an unknown HTTP address"
