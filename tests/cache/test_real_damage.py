"""Real engines with ``--cache-dir`` whose file or folder has met with an accident: they serve, and say the same."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import damaged
from engine_process import REAL_COMMAND, EngineHome, engine_home, wait_until
from tiny_model import seldom_end, write_tiny_model

from server.cache.disk import SUFFIX, TEMPORARY
from server.engine import Engine
from server.request import GenerationRequest, TextEvent

SLOW_COMMAND = [sys.executable, "-P", "-E", str(Path(__file__).parents[1] / "support" / "slow_disk_serve.py")]
PROMPTS = [f"class Thing{n}:\n    def add(self, first):\n        return first + {n}\n" * (6 + n) for n in range(4)]
TOKENS = 16
CAP_DAC_OVERRIDE = "-dac_override,-dac_read_search"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=3, edit=seldom_end)


@pytest.fixture(scope="module")
def texts(model: Path) -> list[str]:
    """What an engine says that keeps nothing."""
    engine = Engine(model, threads=1, cache_bytes=0)
    found = []
    for prompt in PROMPTS:
        events = engine.submit(GenerationRequest(ids=engine.tokenizer.encode(prompt), max_tokens=TOKENS))
        found.append("".join(event.text for event in events if isinstance(event, TextEvent)))
    engine.close()
    return found


@pytest.fixture
def home() -> Iterator[EngineHome]:
    with engine_home(REAL_COMMAND) as home:
        yield home


def reused(home: EngineHome, texts: list[str]) -> int:
    """Ask a running engine for all answers, which are the right ones -> tokens reused."""
    total = 0
    with home.http() as http:
        for prompt, wanted in zip(PROMPTS, texts, strict=True):
            segments = [{"role": "text", "text": prompt, "source": "test"}]
            body = {"route": "plain", "segments": segments, "max_tokens": TOKENS}
            answer = http.post("/draftline/v1/complete", json=body)
            assert answer.status_code == 200, answer.text
            lines: list[dict[str, Any]] = [json.loads(line) for line in answer.text.splitlines() if line]
            assert "".join(line.get("text", "") for line in lines) == wanted
            total += int(lines[-1]["finished"]["counters"]["reused"])
    return total


def stop(home: EngineHome) -> None:
    assert home.run("stop").returncode == 0
    wait_until(lambda: home.health() is None)


def lines_of_trouble(home: EngineHome) -> list[str]:
    assert "Traceback" not in home.log()
    return [line for line in home.log().splitlines() if "WARNING" in line or "ERROR" in line]


def test_an_engine_that_is_killed_while_it_writes_leaves_the_file_before(
    model: Path, texts: list[str], tmp_path: Path
) -> None:
    arguments, rng = ("--model", str(model), "--cache-dir", str(tmp_path / "cache")), random.Random(2)
    with engine_home(SLOW_COMMAND) as home:
        home.serve(*arguments, SLOW_DISK_S="0")
        cold = reused(home, texts)
        stop(home)
        before = next((tmp_path / "cache").glob(f"*{SUFFIX}")).read_bytes()
        for _ in range(2):
            pid = home.serve(*arguments, SLOW_DISK_S="0.05").pid
            assert not list((tmp_path / "cache").glob(f"*{TEMPORARY}")), "an engine removes what others left"
            assert reused(home, texts) > cold
            os.kill(pid, signal.SIGTERM)
            size = rng.randrange(len(before) // 2)
            wait_until(
                lambda size=size: any(p.stat().st_size > size for p in (tmp_path / "cache").glob(f"*{TEMPORARY}"))
            )
            os.kill(pid, signal.SIGKILL)
            home.wait_for_end(pid)
            assert next((tmp_path / "cache").glob(f"*{SUFFIX}")).read_bytes() == before
        assert not lines_of_trouble(home)


def test_a_disk_that_fills_up_leaves_the_file_before_and_the_next_engine_goes_on_from_it(
    home: EngineHome, model: Path, texts: list[str], tmp_path: Path
) -> None:
    arguments = ("--model", str(model), "--cache-dir", str(tmp_path / "cache"))
    cold = None
    for limit in (None, 100_000, 0):
        pid = home.serve(*arguments).pid
        if cold is None:
            cold = reused(home, texts)
        else:
            assert reused(home, texts) > cold
        if limit is not None:  # a file of an engine's may have so many bytes: its log is longer than none
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))
        stop(home)
        assert len(list((tmp_path / "cache").iterdir())) == 1
    (line,) = lines_of_trouble(home)
    assert "kept prefixes can't be written" in line
    assert "File too large" in line


def test_a_damaged_file_keeps_no_engine_from_serving(
    home: EngineHome, model: Path, texts: list[str], tmp_path: Path
) -> None:
    rng = random.Random(4)
    for kind in (None, 3, 0):
        if kind is not None:
            (path,) = (tmp_path / "cache").iterdir()
            path.write_bytes(damaged(path.read_bytes(), rng, kind))
        home.serve("--model", str(model), "--cache-dir", str(tmp_path / "cache"))
        reused(home, texts)
        stop(home)
    assert all("ignored" in line for line in lines_of_trouble(home))
    assert 0 < len(lines_of_trouble(home)) <= 2


def may_not_write_everywhere() -> list[str]:
    """Before a command: what root may do and others may not is not for it."""
    return (
        ["setpriv", f"--bounding-set={CAP_DAC_OVERRIDE}", f"--inh-caps={CAP_DAC_OVERRIDE}"] if os.geteuid() == 0 else []
    )


def test_a_folder_that_may_only_be_read_is_read_and_costs_one_line(
    home: EngineHome, model: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    home.serve("--model", str(model), "--cache-dir", str(folder))
    cold = reused(home, texts)
    stop(home)
    (folder / f"left{TEMPORARY}").touch()
    folder.chmod(0o500)
    home.command = [*may_not_write_everywhere(), *REAL_COMMAND]
    if subprocess.run([*home.command[: -len(REAL_COMMAND)], "touch", str(folder / "new")], check=False).returncode == 0:
        pytest.skip("nobody can be kept from writing here")
    home.serve("--model", str(model), "--cache-dir", str(folder))
    assert reused(home, texts) > cold
    stop(home)
    (line,) = lines_of_trouble(home)
    assert "kept prefixes can't be written" in line
    folder.chmod(0o700)


def test_two_engines_with_one_folder_end_at_once_and_the_next_one_goes_on(
    home: EngineHome, model: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    arguments = ("--model", str(model), "--cache-dir", str(folder))
    with engine_home(REAL_COMMAND) as other:
        pids = [h.serve(*arguments).pid for h in (home, other)]
        cold = [reused(h, texts) for h in (home, other)]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for h, pid in zip((home, other), pids, strict=True):
            h.wait_for_end(pid)
        assert not lines_of_trouble(other)
    assert [path.suffix for path in folder.iterdir()] == [SUFFIX]
    home.serve(*arguments)
    assert reused(home, texts) > cold[0]
    assert not lines_of_trouble(home)
