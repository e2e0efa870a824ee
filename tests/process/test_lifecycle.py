"""The engine's life as real processes see it: started once, found again, replaced, stopped, killed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from engine_process import EMPTY_MODEL, SCRIPTED_COMMAND, EngineHome, engine_home, process_is_gone, wait_until
from tiny_model import write_tiny_model

from prompts.segments import Segment
from server import __version__
from server.client import LOST, SILENCE_S, Claim, EngineClient, EngineUnavailable
from server.gguf.writer import write_model_file
from server.models_known import model_stamp
from server.process import attach, spawn
from server.process.last_model import LastModel, name_of, read_last, want, write_last
from server.process.lock import lock_holder
from server.process.serve import ServeError, load_engine
from server.process.stop import stop_engine
from server.wire import CompletionFinished, CompletionProgress, CompletionRequest, CompletionText, Health

pytestmark = pytest.mark.anyio

REQUEST = CompletionRequest((Segment("text", "prompt", "test"),), route="plain", max_tokens=5)
ENDLESS = CompletionRequest((Segment("text", "prompt", "test"),), route="plain", max_tokens=100_000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineHome]:
    """A home whose engines this process's clients find, and start by themselves."""
    with engine_home() as home:
        for name, value in home.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DRAFTLINE_MODEL", str(home.model()))
        monkeypatch.setattr(spawn, "engine_command", lambda: SCRIPTED_COMMAND)
        yield home


@asynccontextmanager
async def connected(**options: object) -> AsyncGenerator[EngineClient]:
    async with await EngineClient.connect(**options) as client:  # type: ignore[arg-type]
        yield client


async def whole_answer(client: EngineClient, request: CompletionRequest) -> tuple[str, CompletionFinished]:
    pieces: list[str] = []
    async for event in client.complete(request):
        if isinstance(event, CompletionText):
            pieces.append(event.text)
        else:
            finished = event
    return "".join(pieces), finished


async def test_a_long_prompt_is_told_to_a_client_that_asks(home: EngineHome) -> None:
    home.serve()
    request = CompletionRequest((Segment("text", "slowly!", "test"),), route="plain", max_tokens=1, progress=True)
    async with connected() as client:
        events = [event async for event in client.complete(request)]
    assert events[:3] == [CompletionProgress(3, 7), CompletionProgress(7, 7), CompletionText("a")]
    assert isinstance(events[3], CompletionFinished)


def complete_once(request: CompletionRequest) -> tuple[str, CompletionFinished]:
    async def run() -> tuple[str, CompletionFinished]:
        async with connected() as client:
            return await whole_answer(client, request)

    return asyncio.run(run())


def test_socket_is_private_and_the_address_is_published(home: EngineHome) -> None:
    health = home.serve()
    places = home.places
    assert stat.S_IMODE(places.runtime.stat().st_mode) == 0o700
    assert stat.S_ISSOCK(places.socket.stat().st_mode)
    assert stat.S_IMODE(places.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(places.published.stat().st_mode) == 0o600
    published = json.loads(places.published.read_text())
    assert published["pid"] == health.pid
    assert httpx.get(f"{home.url}/health", trust_env=False).json()["pid"] == health.pid
    assert published["version"] == __version__


def test_a_folder_with_other_things_in_it_is_refused_and_stays_as_open_as_it_is(home: EngineHome) -> None:
    home.places.runtime.chmod(0o755)
    (home.places.runtime / "letter.txt").write_text("dear")
    for command in (("stop",), ("serve", "--model", str(home.model()))):
        done = home.run(*command)
        assert done.returncode == 1
        assert "open to other users and holds more than Draftline's files (letter.txt)" in done.stderr
        assert "Traceback" not in done.stderr
    assert stat.S_IMODE(home.places.runtime.stat().st_mode) == 0o755


def test_a_loose_runtime_directory_of_our_own_is_made_private(home: EngineHome) -> None:
    folder = home.places.runtime / "r"
    folder.mkdir()
    (folder / "engine.log").touch()
    folder.chmod(0o777)
    home.run("stop", DRAFTLINE_RUNTIME_DIR=str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_first_client_starts_the_engine_which_outlives_it(home: EngineHome) -> None:
    text, finished = complete_once(REQUEST)
    assert text == "abcde"
    assert finished.reason == "length"
    health = home.health()
    assert health is not None
    assert os.getsid(health.pid) == health.pid  # in a session of its own: closing a terminal doesn't end it
    assert Path(f"/proc/{health.pid}/cwd").resolve() == home.places.runtime.resolve()
    complete_once(REQUEST)
    again = home.health()
    assert again is not None
    assert again.pid == health.pid


def test_u43_loopback_never_goes_through_a_proxy(home: EngineHome, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert complete_once(REQUEST)[0] == "abcde"


async def test_clients_that_start_at_once_end_with_one_engine(home: EngineHome) -> None:
    async with connected() as one, connected() as two:
        assert one.engine_pid == two.engine_pid
    await stop_engine()
    clients = await asyncio.gather(*(EngineClient.connect() for _ in range(4)))
    assert len({client.engine_pid for client in clients}) == 1
    for client in clients:
        await client.aclose()
    wait_until(lambda: count_engines(home) == 1)


def count_engines(home: EngineHome) -> int:
    """Living processes that work in the home's directory."""
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                count += (process / "cwd").readlink() == home.places.runtime
            except OSError:
                continue
    return count


def test_two_serves_at_once_end_with_one(home: EngineHome) -> None:
    model = str(home.model())
    processes = [home.start("--model", model, SCRIPTED_LOAD_S="0.5") for _ in range(2)]
    wait_until(lambda: any(p.poll() is not None for p in processes))
    loser, winner = sorted(processes, key=lambda p: p.poll() is None)
    assert loser.returncode == 3
    error = loser.communicate()[1]
    assert error == (
        f"draftline: an engine is already running (process {winner.pid}, version {__version__}, model scripted); "
        "end it with `draftline stop`\n"
    )
    wait_until(lambda: home.health_if_ready())
    assert winner.poll() is None


def test_stale_socket_of_a_killed_engine_is_replaced(home: EngineHome) -> None:
    killed = home.serve()
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: lock_holder(home.places.lock) is None)
    assert home.places.socket.exists()
    assert complete_once(REQUEST)[0] == "abcde"
    health = home.health()
    assert health is not None
    assert health.pid != killed.pid


async def test_engine_killed_in_a_completion_is_reported_at_once_and_the_next_starts_a_new_one(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_TOKEN_MS", "20")
    async with connected() as client:
        killed = client.engine_pid
        async with aclosing(client.complete(ENDLESS)) as events:
            await anext(events)
            os.kill(killed, signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(EngineUnavailable, match=f"the engine process {killed} ended"):
                [event async for event in events]
        assert time.monotonic() - began < SILENCE_S / 2
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        assert client.engine_pid != killed


async def test_engine_killed_between_requests_is_not_noticed(home: EngineHome) -> None:
    async with connected() as client:
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        os.kill(client.engine_pid, signal.SIGKILL)
        both = await asyncio.gather(whole_answer(client, REQUEST), whole_answer(client, REQUEST))
        assert [text for text, _ in both] == ["abcde", "abcde"]
    assert count_engines(home) == 1


async def test_search_for_another_engine_is_told_and_outlives_the_request_that_began_it(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Health | EngineUnavailable | str] = []
    async with connected() as client:
        client.on_change = told.append
        killed = client.engine_pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: process_is_gone(killed))
        monkeypatch.setenv("SCRIPTED_LOAD_S", "0.5")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(whole_answer(client, REQUEST), 0.2)
        assert told == [LOST]
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        assert isinstance(told[1], Health)
        assert told[1].pid == client.engine_pid != killed

        monkeypatch.setenv("SCRIPTED_FAIL", "no more engines")
        os.kill(client.engine_pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="no more engines"):
            await whole_answer(client, REQUEST)
        assert [str(event) for event in told[2:]] == [LOST, f"no more engines; it is what ran last: {attach.GO_BACK}"]


async def test_closed_client_answers_those_who_wait_for_another_engine(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as client:
        monkeypatch.setenv("SCRIPTED_LOAD_S", "20")
        os.kill(client.engine_pid, signal.SIGKILL)
        waiting = asyncio.create_task(whole_answer(client, REQUEST))
        while client.engine_pid == (lock_holder(home.places.lock) or client.engine_pid):
            await asyncio.sleep(0.02)
        await client.aclose()
        for request in (waiting, whole_answer(client, REQUEST)):
            with pytest.raises(EngineUnavailable, match="the connection to the engine was closed"):
                await request


async def test_client_that_may_not_start_says_that_nothing_runs(home: EngineHome) -> None:
    with pytest.raises(EngineUnavailable, match="no engine is running"):
        await EngineClient.connect(start=False)
    assert home.health() is None


def test_idle_engine_ends_by_itself(home: EngineHome) -> None:
    home.serve("--idle-minutes", "0.01")
    wait_until(lambda: lock_holder(home.places.lock) is None)
    assert not home.places.socket.exists()
    assert not home.places.published.exists()
    assert "no client for" in home.log()


async def test_engine_does_not_count_as_idle_while_a_client_is_connected(home: EngineHome) -> None:
    pid = home.serve("--idle-minutes", "0.005").pid
    async with connected() as client:
        await whole_answer(client, REQUEST)
        await asyncio.sleep(1.0)
        assert not process_is_gone(pid)
    wait_until(lambda: lock_holder(home.places.lock) is None)


async def test_engine_does_not_count_as_idle_while_it_works(home: EngineHome) -> None:
    home.serve("--idle-minutes", "0.005", SCRIPTED_TOKEN_MS="40")
    async with connected() as client:
        text, finished = await whole_answer(client, CompletionRequest(REQUEST.segments, "plain", max_tokens=25))
    assert (len(text), finished.reason) == (25, "length")


def test_stop_ends_the_engine(home: EngineHome) -> None:
    pid = home.serve().pid
    done = home.run("stop")
    assert (done.returncode, done.stdout) == (0, f"the engine (process {pid}) has ended\n")
    assert lock_holder(home.places.lock) is None
    assert not home.places.socket.exists()
    assert home.run("stop").stdout == "no engine is running\n"


def test_stop_while_the_model_loads(home: EngineHome) -> None:
    process = home.start("--model", str(home.model()), SCRIPTED_LOAD_S="30")
    wait_until(lambda: home.health())
    assert home.run("stop").returncode == 0
    assert process.wait(5) == 0


async def test_stop_cancels_what_runs(home: EngineHome) -> None:
    home.serve(SCRIPTED_TOKEN_MS="20")
    async with connected() as client, aclosing(client.complete(ENDLESS)) as events:
        await anext(events)
        await stop_engine()
        last = [event async for event in events][-1]
    assert isinstance(last, CompletionFinished)
    assert last.reason == "cancelled"


async def test_stop_ends_an_engine_that_does_not_answer(home: EngineHome, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = home.serve().pid
    os.kill(pid, signal.SIGSTOP)
    for name in ("ANSWER_S", "ASKED_S", "TERMINATED_S"):
        monkeypatch.setattr(f"server.process.stop.{name}", 0.3)
    assert await stop_engine() == pid
    assert lock_holder(home.places.lock) is None


async def test_engine_that_does_not_answer_is_reported(home: EngineHome, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = home.serve().pid
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("server.process.probe.PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(attach, "SILENCE_PATIENCE_S", 0.5)
    with pytest.raises(EngineUnavailable, match=f"the engine process {pid} does not answer; end it with"):
        await EngineClient.connect()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_engine_and_clean_up(home: EngineHome, number: signal.Signals) -> None:
    pid = home.serve().pid
    os.kill(pid, number)
    wait_until(lambda: lock_holder(home.places.lock) is None)
    assert not home.places.socket.exists()
    assert not home.places.published.exists()


async def test_idle_engine_of_another_version_is_replaced(home: EngineHome) -> None:
    old = home.serve(SCRIPTED_VERSION="0.0.1")
    async with connected() as client:
        health = await client.health()
    assert (health.version, health.pid == old.pid) == (__version__, False)


async def test_busy_engine_of_another_version_finishes_first(home: EngineHome) -> None:
    old = home.serve(SCRIPTED_VERSION="0.0.1", SCRIPTED_TOKEN_MS="20")
    async with connected(start=False) as before:
        running = asyncio.create_task(whole_answer(before, CompletionRequest(REQUEST.segments, "plain", max_tokens=60)))
        while not (await before.health()).active:
            await asyncio.sleep(0.01)
        async with connected() as client:
            assert running.done()
            assert client.engine_pid != old.pid
        text, finished = await running
    assert (len(text), finished.reason) == (60, "length")


async def test_client_from_before_an_upgrade_does_not_undo_it(home: EngineHome) -> None:
    home.serve()
    async with connected() as before:
        await stop_engine()
        upgraded = home.serve(SCRIPTED_VERSION="9.9.9")
        assert (await whole_answer(before, REQUEST))[0] == "abcde"
        assert before.engine_pid == upgraded.pid


async def test_engine_with_another_model_is_replaced_and_that_is_told(home: EngineHome) -> None:
    old = home.serve()
    other = home.model("other.gguf")
    told: list[str] = []
    async with connected(model=str(other), tell=told.append) as client:
        health = await client.health()
        assert (health.model, health.model_id) == (str(other.resolve()), "other")
    reason = f"it holds the model {old.model}, and {other.resolve()} is asked for"
    assert told == [f"the running engine (process {old.pid}) is replaced: {reason}"]


async def test_a_broken_model_file_does_not_end_the_engine_that_works(home: EngineHome) -> None:
    running = home.serve()
    broken = home.model("broken.gguf")
    broken.write_bytes(EMPTY_MODEL[:20])
    with pytest.raises(EngineUnavailable, match=r"broken\.gguf"):
        await EngineClient.connect(model=str(broken))
    health = home.health()
    assert health is not None
    assert health.pid == running.pid


async def test_client_without_a_wish_takes_the_model_that_runs(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = home.serve("--model", str(home.model("other.gguf"))).pid
    monkeypatch.delenv("DRAFTLINE_MODEL")
    async with connected() as client:
        assert client.engine_pid == pid


async def test_clients_that_disagree_on_the_model_do_not_take_turns_forever(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_LOAD_S", "0.3")
    wishes = [str(home.model("one.gguf")), str(home.model("two.gguf"))]
    found = await asyncio.gather(*(EngineClient.connect(model=m) for m in wishes), return_exceptions=True)
    clients = [client for client in found if isinstance(client, EngineClient)]
    assert clients
    for client in clients:
        await client.aclose()
    assert all(isinstance(f, EngineClient | EngineUnavailable) for f in found)
    for failure in found:
        if isinstance(failure, EngineUnavailable):
            assert "or end the engine with `draftline stop`" in str(failure)


async def test_who_was_replaced_takes_the_engine_back_only_when_nobody_else_is_there(home: EngineHome) -> None:
    one, two = str(home.model("one.gguf")), str(home.model("two.gguf"))
    told: list[Health | EngineUnavailable | str] = []
    lines: list[str] = []
    claim = Claim()
    async with connected(model=one, claim=claim, tell=lines.append) as first:
        first.on_change = told.append
        async with connected(model=two) as second:
            assert second.model_id == "two"
            for _ in range(2):
                with pytest.raises(
                    EngineUnavailable,
                    match=r"another client keeps the engine .*two\.gguf, and .*one\.gguf is asked for; ",
                ):
                    await whole_answer(first, REQUEST)
            with pytest.raises(EngineUnavailable, match="another client keeps"):
                await EngineClient.connect(model=one, claim=claim)
            assert told[0] == f"the engine was replaced because a client asked for the model {two}"
            assert (await whole_answer(second, REQUEST))[0] == "abcde"
            assert second.engine_pid == lock_holder(home.places.lock)
        wait_until(lambda: home.health_if_ready() and home.health_if_ready().clients == 2)  # type: ignore[union-attr]
        assert (await whole_answer(first, REQUEST))[0] == "abcde"
        assert first.model_id == "one"
        assert len(lines) == 1
        assert "is replaced" in lines[0]  # perhaps once it is done with what the second client asked
        assert f": it holds the model {two}, and {one} is asked for" in lines[0]


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch, home: EngineHome) -> Path:
    """Clients name no model; another one than the embedded runs."""
    monkeypatch.delenv("DRAFTLINE_MODEL")
    return home.model("chosen.gguf")


async def test_a_damaged_model_does_not_end_the_engine_that_works(home: EngineHome) -> None:
    running = home.serve()
    damaged = home.model("damaged.gguf")
    damaged.write_bytes(EMPTY_MODEL + b"damaged")
    with pytest.raises(EngineUnavailable) as refused:
        await EngineClient.connect(model=str(damaged))
    assert str(refused.value) == f"{damaged}: it is damaged; the running engine goes on with its model"
    health = home.health()
    assert health is not None
    assert health.pid == running.pid
    home.model("scripted.gguf").write_bytes(EMPTY_MODEL + b"damaged since")
    with pytest.raises(EngineUnavailable, match="the running engine goes on with its model"):
        await EngineClient.connect()
    assert lock_holder(home.places.lock) == running.pid


async def test_a_check_that_can_not_be_started_is_one_line_and_the_engine_goes_on(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = home.serve()
    other = home.model("other.gguf")
    monkeypatch.setattr(spawn, "engine_command", lambda: [str(home.places.runtime / "nowhere")])
    with pytest.raises(EngineUnavailable) as refused:
        await EngineClient.connect(model=str(other))
    assert str(refused.value).startswith(f"{other} can't be checked: ")
    assert str(refused.value).endswith("; the running engine goes on with its model")
    assert lock_holder(home.places.lock) == running.pid


async def test_when_the_new_model_can_not_be_loaded_after_all_the_next_client_gets_what_ran(
    home: EngineHome, unnamed: Path
) -> None:
    home.serve("--model", str(unnamed))
    other = home.model("other.gguf")
    other.write_bytes(EMPTY_MODEL + b"unloadable")
    with pytest.raises(EngineUnavailable) as failed:
        await EngineClient.connect(model=str(other))
    assert str(failed.value) == (
        f"{other}: it can't be loaded; what ran before, {unnamed}, is started for the next who names no model"
    )
    async with connected() as client:
        assert client.model_id == "chosen"


async def test_engine_that_died_alone_comes_back_with_its_model_until_it_is_stopped(
    home: EngineHome, unnamed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.kill(home.serve("--model", str(unnamed)).pid, signal.SIGKILL)
    told: list[str] = []
    async with connected(tell=told.append) as client:
        assert client.model_id == "chosen"
    line = f"no model is named, so an engine is started with the one that ran last, {unnamed}; {attach.GO_BACK}"
    assert told == [line]
    os.kill(client.engine_pid, signal.SIGKILL)
    wait_until(lambda: lock_holder(home.places.lock) is None)
    assert home.run("stop").stdout == (
        f"no engine is running; the next one doesn't go on with {unnamed}, which ran last\n"
    )
    async with connected() as client:
        assert client.model_id == "embedded"


@pytest.mark.parametrize("end", ["stop", "signal", "idle"])
def test_an_end_on_purpose_forgets_the_model(home: EngineHome, unnamed: Path, end: str) -> None:
    pid = home.serve("--model", str(unnamed), *(["--idle-minutes", "0.01"] if end == "idle" else [])).pid
    assert read_last(home.places) == LastModel(str(unnamed))
    if end == "stop":
        home.run("stop")
    elif end == "signal":
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: process_is_gone(pid))
    assert not home.places.last.exists()


async def test_model_that_ran_last_and_is_gone_is_not_silently_another_one(home: EngineHome, unnamed: Path) -> None:
    os.kill(home.serve("--model", str(unnamed)).pid, signal.SIGKILL)
    unnamed.unlink()
    with pytest.raises(EngineUnavailable, match="the model that ran last can't be started again: there is no model"):
        await EngineClient.connect()


async def test_client_killed_in_a_completion_connects_again_to_the_same_model(home: EngineHome, unnamed: Path) -> None:
    """As an editor does it: with a new client."""
    home.serve("--model", str(unnamed), SCRIPTED_TOKEN_MS="20")
    async with connected() as client, aclosing(client.complete(ENDLESS)) as events:
        await anext(events)
        os.kill(client.engine_pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            [event async for event in events]
    async with connected() as client:
        assert client.model_id == "chosen"


async def both_at_work(home: EngineHome) -> None:
    """Both requests have reached the engine."""
    while (health := home.health()) is None or health.active < 2:
        await asyncio.sleep(0.01)


async def test_busy_engine_goes_on_for_everybody_when_a_replacement_is_given_up(
    home: EngineHome, unnamed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = home.serve("--model", str(unnamed), SCRIPTED_TOKEN_MS="5").pid
    monkeypatch.setattr(attach, "BUSY_PATIENCE_S", 0.5)
    told: list[str] = []
    async with connected() as client, aclosing(client.complete(ENDLESS)) as events:
        await anext(events)
        with pytest.raises(EngineUnavailable) as given_up:
            await EngineClient.connect(model=str(home.model("other.gguf")), tell=told.append)
        assert str(given_up.value) == (
            f"the engine (process {pid}) goes on with the model {unnamed}: it is still busy with 1 request of other "
            f"clients; wait, or end it with `draftline stop`, and try again"
        )
        assert "is replaced once it is done with 1 request: it holds" in told[0]
        health = home.health()
        assert health is not None
        assert (health.pid, health.status) == (pid, "ready")
        async with connected() as other:
            answer = asyncio.create_task(whole_answer(other, REQUEST))
            await both_at_work(home)
            await events.aclose()
            assert (await answer)[0] == "abcde"
        assert read_last(home.places) == LastModel(str(unnamed))


@pytest.fixture
def slow_check(monkeypatch: pytest.MonkeyPatch) -> SlowCheck:
    check = SlowCheck()
    monkeypatch.setattr(attach, "model_problem", check)
    return check


class SlowCheck:
    """In place of the check of a model: takes as long as the test wants, and finds nothing."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, path: Path) -> None:
        self.begun.set()
        await self.may_end.wait()


async def test_an_engine_that_came_while_the_model_was_checked_is_left_alone(
    home: EngineHome, slow_check: SlowCheck
) -> None:
    home.serve()
    wish = asyncio.create_task(EngineClient.connect(model=str(home.model("two.gguf"))))
    await slow_check.begun.wait()
    await stop_engine()
    one = home.model("one.gguf")
    home.serve("--model", str(one))
    async with connected(model=str(one)) as client:
        slow_check.may_end.set()
        with pytest.raises(EngineUnavailable, match="another command started it: wait until that has ended"):
            await wish
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        assert client.engine_pid == lock_holder(home.places.lock)


async def test_a_client_that_came_while_the_model_was_checked_keeps_the_engine_from_one_that_came_before(
    home: EngineHome, slow_check: SlowCheck
) -> None:
    pid = home.serve().pid
    claim = Claim()
    claim.spent = True
    wish = asyncio.create_task(EngineClient.connect(model=str(home.model("two.gguf")), claim=claim))
    await slow_check.begun.wait()
    async with connected() as client:
        slow_check.may_end.set()
        with pytest.raises(EngineUnavailable, match="another client keeps the engine"):
            await wish
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        assert client.engine_pid == pid


async def test_the_wish_to_end_an_engine_is_for_that_process_only(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may change between a look at it and the wish."""
    pid = home.serve().pid
    ask_health = attach.ask_health

    async def before(http: httpx.AsyncClient) -> Health | None:
        health = await ask_health(http)
        return health and dataclasses.replace(health, pid=1)

    monkeypatch.setattr(attach, "ask_health", before)
    claim = Claim()
    monkeypatch.setattr(attach, "BUSY_PATIENCE_S", 0.3)
    with pytest.raises(EngineUnavailable, match="goes on with the model"):
        await EngineClient.connect(model=str(home.model("two.gguf")), claim=claim)
    health = home.health()
    assert health is not None
    assert (health.pid, health.status) == (pid, "ready")
    assert not claim.spent


async def test_a_client_that_gave_up_has_replaced_nothing_and_may_try_again(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = home.serve(SCRIPTED_VERSION="0.0.1", SCRIPTED_TOKEN_MS="5")
    claim = Claim()
    async with connected(start=False) as other:
        async with aclosing(other.complete(ENDLESS)) as events:
            await anext(events)
            monkeypatch.setattr(attach, "BUSY_PATIENCE_S", 0.3)
            with pytest.raises(EngineUnavailable, match="is still busy with 1 request"):
                await EngineClient.connect(claim=claim)
            assert not claim.spent
        wait_until(lambda: home.health() and not home.health().active)  # type: ignore[union-attr]
        monkeypatch.setattr(attach, "BUSY_PATIENCE_S", 60.0)
        async with connected(claim=claim) as client:
            assert claim.spent
            assert client.engine_pid != old.pid


async def test_a_client_has_had_its_turn_when_it_ended_an_engine_and_its_own_failed(home: EngineHome) -> None:
    home.serve()
    other = home.model("other.gguf")
    other.write_bytes(EMPTY_MODEL + b"unloadable")
    claim = Claim()
    with pytest.raises(EngineUnavailable, match="it can't be loaded"):
        await EngineClient.connect(model=str(other), claim=claim)
    assert claim.spent


async def test_a_check_that_takes_long_is_told_and_is_no_silence_of_the_engine(
    home: EngineHome, slow_check: SlowCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.serve(SCRIPTED_TOKEN_MS="5")
    monkeypatch.setattr(attach, "SILENCE_PATIENCE_S", 0.5)
    monkeypatch.setattr(attach, "BUSY_PATIENCE_S", 0.2)
    monkeypatch.setattr(attach, "QUIET_S", 0.1)
    other = home.model("other.gguf")
    told: list[str] = []
    async with connected() as client, aclosing(client.complete(ENDLESS)) as events:
        await anext(events)
        wish = asyncio.create_task(EngineClient.connect(model=str(other), tell=told.append))
        await slow_check.begun.wait()
        await asyncio.sleep(0.8)
        slow_check.may_end.set()
        with pytest.raises(EngineUnavailable, match=r"goes on with the model .*: it is still busy with 1 request"):
            await wish
    assert told[0] == f"the model {other} is being checked before it takes the running engine's place"
    assert "is replaced once it is done with 1 request" in told[1]


async def test_each_engine_that_ends_has_its_time_for_that_and_is_told_once(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "BUSY_PATIENCE_S", 0.9)
    monkeypatch.setattr(attach, "QUIET_S", 0.1)
    model = home.model()
    ready = Health("ready", __version__, 4, str(model), "scripted", model_stamp(model))
    ending = [(1, 2), (1, 1), (2, 1), (2, 1), (3, 0)]
    told: list[str] = []
    began = time.monotonic()

    def engine(request: httpx.Request) -> httpx.Response:
        index = int((time.monotonic() - began) / 0.3)
        if index >= len(ending):
            return httpx.Response(200, json=ready.to_json())
        pid, active = ending[index]
        health = dataclasses.replace(ready, status="stopping", pid=pid, active=active)
        return httpx.Response(200, json=health.to_json())

    async with httpx.AsyncClient(transport=httpx.MockTransport(engine), base_url="http://localhost") as http:
        found = await attach.Attachment(start=True, model=None, claim=Claim(), tell=told.append).wait_until_ready(http)
    assert found == ready
    assert told == [
        "the engine (process 1) is ending and still busy with 2 requests",
        "the engine (process 2) is ending and still busy with 1 request",
        "the engine (process 3) is ending",
    ]


async def test_who_names_no_model_waits_for_the_one_that_is_about_to_come(
    home: EngineHome, unnamed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.serve("--model", str(unnamed), SCRIPTED_CLOSE_S="0.5")
    monkeypatch.setenv("SCRIPTED_LOAD_S", "0.5")
    other = home.model("other.gguf")
    wish = asyncio.create_task(EngineClient.connect(model=str(other)))
    while (health := home.health()) is not None and health.status == "ready":
        await asyncio.sleep(0.01)
    assert read_last(home.places) == LastModel(str(unnamed), str(other))
    async with connected() as plain, await wish as asked:
        assert (plain.model_id, plain.engine_pid) == ("other", asked.engine_pid)


async def test_who_names_no_model_starts_the_one_that_is_about_to_come(home: EngineHome, unnamed: Path) -> None:
    write_last(home.places, str(unnamed))
    want(home.places, str(home.model("other.gguf")))
    async with connected() as client:
        assert client.model_id == "other"


async def test_model_about_to_come_that_fails_gives_way_to_what_ran(home: EngineHome, unnamed: Path) -> None:
    other = home.model("other.gguf")
    other.write_bytes(EMPTY_MODEL + b"unloadable")
    write_last(home.places, str(unnamed))
    want(home.places, str(other))
    told: list[str] = []
    async with connected(tell=told.append) as client:
        assert client.model_id == "chosen"
    assert f"{other}: it can't be loaded" in told


async def test_a_bad_model_at_the_same_time_costs_nobody_else_the_engine(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_LOAD_S", "0.3")
    good, bad = home.model("good.gguf"), home.model("bad.gguf")
    bad.write_bytes(EMPTY_MODEL + b"damaged")
    for order in ((bad, good), (good, bad)):
        found = await asyncio.gather(*(EngineClient.connect(model=str(m)) for m in order), return_exceptions=True)
        client, refusal = (found[order.index(m)] for m in (good, bad))
        assert isinstance(client, EngineClient), client
        assert isinstance(refusal, EngineUnavailable)
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        await client.aclose()
        await stop_engine()


async def test_replaced_engine_tells_its_own_terminal_why(home: EngineHome) -> None:
    model, other = home.model(), home.model("other.gguf")
    process = home.start("--model", str(model))
    wait_until(home.health_if_ready)
    async with connected(model=str(other)):
        pass
    why = f"asked to end: a client replaces it: it holds the model {model}, and {other} is asked for"
    assert process.communicate(timeout=10)[0].splitlines()[-1] == f"draftline {__version__} ends: {why}"
    assert why in home.log()


async def test_engine_whose_model_file_changed_is_replaced(home: EngineHome) -> None:
    model = home.model()
    old = home.serve("--model", str(model))
    model.write_bytes(EMPTY_MODEL + b"trained once more")
    async with connected() as client:
        assert client.engine_pid != old.pid


@pytest.mark.parametrize("why", ["changed", "version"])
async def test_who_names_no_model_keeps_the_one_that_ran_when_its_engine_is_replaced(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.delenv("DRAFTLINE_MODEL")
    model = home.model("chosen.gguf")
    old = home.serve("--model", str(model), SCRIPTED_VERSION="0.0.1" if why == "version" else __version__)
    if why == "changed":
        os.utime(model, (1, 1))
    told: list[str] = []
    async with connected(tell=told.append) as client:
        health = await client.health()
    assert (health.pid == old.pid, health.model, health.version) == (False, str(model.resolve()), __version__)
    reason = {
        "changed": f"the file {model.resolve()} has changed since it was loaded",
        "version": f"it is of version 0.0.1, and this is version {__version__}",
    }[why]
    assert told == [f"the running engine (process {old.pid}) is replaced: {reason}"]


async def test_a_changed_file_that_is_broken_does_not_end_the_engine_that_works(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAFTLINE_MODEL")
    model = home.model("chosen.gguf")
    running = home.serve("--model", str(model))
    model.write_bytes(EMPTY_MODEL[:20])
    with pytest.raises(EngineUnavailable, match=r"chosen\.gguf: the file ends after 20 bytes"):
        await EngineClient.connect()
    health = home.health()
    assert health is not None
    assert health.pid == running.pid


async def test_client_that_lost_its_engine_gets_the_same_model_again(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAFTLINE_MODEL")
    killed = home.serve("--model", str(home.model("chosen.gguf")))
    async with connected() as client:
        os.kill(killed.pid, signal.SIGKILL)
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        health = await client.health()
    assert (health.pid == killed.pid, health.model) == (False, killed.model)


def test_embedded_model_of_another_installation_becomes_that_of_this_one() -> None:
    before = Health("ready", "0.0.1", 1, "/elsewhere/models/draftline-python-56m.gguf", "embedded", "1:1")
    assert name_of(before) == "embedded"


async def test_client_waits_for_an_engine_that_is_ending(home: EngineHome) -> None:
    old = home.serve(SCRIPTED_CLOSE_S="1")
    with home.http() as http:
        http.post("/draftline/v1/stop")
    async with connected() as client:
        assert client.engine_pid != old.pid
        assert (await whole_answer(client, REQUEST))[0] == "abcde"


async def test_request_to_an_ending_engine_goes_to_the_next_one(home: EngineHome) -> None:
    old = home.serve(SCRIPTED_CLOSE_S="1")
    async with connected() as client:
        with home.http() as http:
            assert http.post("/draftline/v1/stop", json={"when": "idle"}).json()["status"] == "stopping"
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        assert client.engine_pid != old.pid


async def test_closing_the_stream_cancels_the_generation(home: EngineHome) -> None:
    home.serve(SCRIPTED_TOKEN_MS="10")
    async with connected() as client:
        async with aclosing(client.complete(ENDLESS)) as events:
            assert isinstance(await anext(events), CompletionText)
        assert (await whole_answer(client, REQUEST))[0] == "abcde"
        assert (await client.health()).active == 0
    assert "reason=cancelled" in home.log()


FAILURES = {
    "missing": ("nowhere.gguf", "there is no model file {path} and no model of that name; known models: embedded"),
    "not a GGUF file": (
        "text.gguf",
        "{path} is not a GGUF file; download the model again or name another with --model",
    ),
    "a directory": ("folder", "{path} is a directory; --model takes a GGUF file"),
    "a pipe": ("pipe.gguf", "{path} is a pipe or a device; --model takes a GGUF file"),
}


@pytest.fixture
def bad_model(home: EngineHome, request: pytest.FixtureRequest) -> tuple[str, str]:
    name, message = FAILURES[request.param]
    path = home.places.runtime / name
    if name == "text.gguf":
        path.write_text("no model")
    if name == "folder":
        path.mkdir()
    if name == "pipe.gguf":
        os.mkfifo(path)
    return str(path), message.format(path=path)


@pytest.mark.parametrize("bad_model", FAILURES, indirect=True)
async def test_bad_model_is_one_line_for_serve_and_for_the_client(home: EngineHome, bad_model: tuple[str, str]) -> None:
    path, message = bad_model
    done = home.run("serve", "--model", path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"draftline: {message}\n")
    with pytest.raises(EngineUnavailable) as caught:
        await EngineClient.connect(model=path)
    assert str(caught.value) == message


async def test_client_reports_the_line_with_which_loading_failed(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_FAIL", "scripted.gguf: tensor blk.0.attn_q.weight: it is missing. Get it again.")
    done = home.run("serve", "--model", str(home.model()))
    assert done.returncode == 1
    assert done.stderr == f"draftline: {os.environ['SCRIPTED_FAIL']}\n"
    with pytest.raises(EngineUnavailable) as caught:
        await EngineClient.connect()
    assert str(caught.value) == os.environ["SCRIPTED_FAIL"]
    assert lock_holder(home.places.lock) is None


async def test_engine_that_dies_while_starting_is_reported(home: EngineHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPTED_LOAD_S", "60")
    connecting = asyncio.create_task(EngineClient.connect())
    while (pid := lock_holder(home.places.lock)) is None:
        await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailable, match=f"the engine process was killed .* its log is {home.places.log}"):
        await connecting


def test_port_in_use_is_one_line(home: EngineHome) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = home.run("serve", "--model", str(home.model()), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == (
        f"draftline: port {port} on 127.0.0.1 is in use; name another with --port, or leave --port out for a free one\n"
    )
    assert not home.places.socket.exists()


def test_given_port_is_served(home: EngineHome) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home.serve("--port", str(port))
    assert home.url == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com"])
def test_only_loopback_is_bound(home: EngineHome, host: str) -> None:
    done = home.run("serve", "--model", str(home.model()), "--host", host)
    assert done.returncode == 1
    assert done.stderr.startswith(f"draftline: refusing to serve on {host}: ")
    assert done.stderr.count("\n") == 1


def test_an_empty_host_is_called_that(home: EngineHome) -> None:
    done = home.run("serve", "--model", str(home.model()), "--host", "")
    assert done.returncode == 1
    assert done.stderr == (
        "draftline: the host to serve on is empty, which would be every address; use --host 127.0.0.1\n"
    )


def test_runtime_directory_of_somebody_else_is_refused(home: EngineHome, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home.places.runtime)
    for path in (link, home.model()):
        done = home.run("serve", DRAFTLINE_RUNTIME_DIR=str(path))
        assert done.returncode == 1
        assert done.stderr == (
            f"draftline: the runtime directory can't be used: {path} is not a directory; "
            "set DRAFTLINE_RUNTIME_DIR to a directory of your own\n"
        )


def test_directory_that_all_users_share_is_refused_and_left_as_it_is(home: EngineHome) -> None:
    home.places.runtime.chmod(0o1777)
    done = home.run("serve", "--model", str(home.model()))
    assert done.returncode == 1
    assert done.stderr == (
        f"draftline: the runtime directory can't be used: {home.places.runtime} is there for all users; "
        "set DRAFTLINE_RUNTIME_DIR to a directory of your own\n"
    )
    assert stat.S_IMODE(home.places.runtime.stat().st_mode) == 0o1777


@pytest.mark.parametrize(
    ("blocked", "named", "reason"),
    [
        ("engine.lock", "engine.lock", "Is a directory"),
        ("engine.log", "engine.log", "Is a directory"),
        ("engine.json", "engine.json", "Is a directory"),
        ("engine.new", "engine.json", "No space left on device"),
    ],
)
def test_file_that_can_not_be_written_is_one_line(home: EngineHome, blocked: str, named: str, reason: str) -> None:
    path = home.places.runtime / blocked
    if "directory" in reason:
        path.mkdir()
    else:
        path.symlink_to("/dev/full")
    done = home.run("serve", "--model", str(home.model()))
    assert done.returncode == 1
    assert done.stderr == (
        f"draftline: {home.places.runtime / named} can't be written: {reason}; make room there, or set "
        "DRAFTLINE_RUNTIME_DIR to another directory of your own\n"
    )


async def test_folder_in_the_place_of_the_socket_is_one_line(home: EngineHome) -> None:
    home.places.socket.mkdir()
    line = f"{home.places.socket} is in the way of the engine's socket and can't be removed: "
    done = home.run("serve", "--model", str(home.model()))
    assert done.returncode == 1
    assert done.stderr.startswith(f"draftline: {line}")
    assert done.stderr.count("\n") == 1
    with pytest.raises(EngineUnavailable) as refused:
        await EngineClient.connect()
    assert str(refused.value).startswith(line)
    assert home.run("stop").stdout == "no engine is running\n"


def test_full_disk_costs_the_log_and_nothing_else(home: EngineHome) -> None:
    home.places.log.symlink_to("/dev/full")
    process = home.start("--model", str(home.model()))
    wait_until(home.health_if_ready, 60)
    assert complete_once(REQUEST)[0] == "abcde"
    assert home.run("stop").returncode == 0
    assert process.communicate()[1] == ""


def test_model_whose_name_is_no_utf8_is_served(home: EngineHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTLINE_MODEL", str(home.model("l\udce4nder.gguf")))
    assert complete_once(REQUEST)[0] == "abcde"
    assert "l\\udce4nder.gguf" in home.log()
    with home.http() as http:
        assert http.get("/v1/models").json()["data"][0]["id"] == "l\udce4nder"


def test_an_engine_that_failed_for_good_ends_and_the_next_client_starts_another(home: EngineHome) -> None:
    """Nobody needs to ask the broken one again first; whoever was there gets the error."""
    failing = CompletionRequest((Segment("text", "break!", "test"),), route="plain", max_tokens=5)
    _, finished = complete_once(failing)
    assert (finished.reason, finished.detail) == ("error", "told to break")
    first = int(home.log().split()[2])
    wait_until(lambda: process_is_gone(first), 30)
    assert complete_once(REQUEST)[0] == "abcde"
    health = home.health()
    assert health is not None
    assert health.pid != first
    assert health.executor == "a script"
    assert "the engine failed and ends" in home.log()


def test_a_gpu_that_fails_at_once_is_told_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from server import engine
    from server.kernel.errors import KernelFault

    def fail(*_: object, **__: object) -> None:
        raise KernelFault("the decode kernel broke off: an error")

    monkeypatch.setattr(engine, "Engine", fail)
    with pytest.raises(
        ServeError, match=r"can't be run on the GPU: the decode kernel broke off.*CUDA_VISIBLE_DEVICES="
    ):
        load_engine(write_tiny_model(tmp_path / "m.gguf"), lambda: None)


def test_file_of_another_architecture_is_told_so_whatever_else_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_model_file(path, {"general.architecture": "llama"}, {})
    with pytest.raises(ServeError, match=r"its architecture is 'llama', not 'qwen35'"):
        load_engine(path, lambda: None)


def test_too_long_a_socket_path_is_one_line(home: EngineHome, tmp_path: Path) -> None:
    done = home.run("serve", DRAFTLINE_RUNTIME_DIR=str(tmp_path / ("long" * 25)))
    assert done.returncode == 1
    assert "set DRAFTLINE_RUNTIME_DIR to a shorter directory" in done.stderr
    assert done.stderr.count("\n") == 1
