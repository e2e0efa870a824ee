"""The ``draftline`` command as a process: help at once, version, doctor, and whose code it runs."""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import REAL_COMMAND, EngineHome, engine_home, process_is_gone, wait_until
from tiny_model import Metadata, Tensors, write_tiny_model

from lsp.settings import Settings
from server import __version__
from server.process.address import bind_socket
from server.process.lock import EngineLock
from server.process.serve import _tell_if_unusable
from server.usable import ANSWER_TOKENS

COMMANDS = ("serve", "stop", "lsp", "complete", "doctor", "setup", "synth")


@pytest.fixture
def home() -> Iterator[EngineHome]:
    with engine_home() as home:
        yield home


def imported_modules(*arguments: str) -> set[str]:
    """What ``draftline ARGUMENTS`` imports."""
    program = (
        "import sys\nfrom server.cli import main\ntry:\n    main()\n"
        "finally:\n    print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return set(done.stderr.split())


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    done = subprocess.run([*REAL_COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    heavy = {"torch", "numpy", "httpx", "uvicorn", "starlette", "pygls", "tokenizers", "rich", "pydantic", "jinja2"}
    assert not heavy & imported_modules("--help")


def test_help_is_quick() -> None:
    """At most 0.3 s on an idle machine. Processor time, so that other processes don't count; the best of three."""
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run([*REAL_COMMAND, "--help"], capture_output=True, timeout=60, check=True)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(times) < 0.3


def test_client_commands_never_import_torch(home: EngineHome, tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("x = \n")
    os.environ.pop("DRAFTLINE_MODEL", None)
    assert "torch" not in imported_modules("complete", f"{file}:1:5", "--model", str(tmp_path / "none.gguf"))
    assert "torch" not in imported_modules("stop")


def test_version() -> None:
    done = subprocess.run([*REAL_COMMAND, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"draftline {__version__}\n"


def test_console_script_runs_the_same() -> None:
    script = Path(sys.executable).with_name("draftline")
    if not script.exists():
        pytest.skip("the distribution is not installed in this environment")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"draftline {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [("unknown",), ("serve", "--port", "70000"), ("serve", "--port", "x"), ("complete",), ("doctor", "--x")],
)
def test_bad_arguments_are_explained(home: EngineHome, arguments: tuple[str, ...]) -> None:
    done = home.run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr


@pytest.mark.parametrize("command", [("complete", "x.py:1:1"), ("serve",), ("lsp",), ("doctor",)])
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_model_is_a_mistake_and_not_the_embedded_one(
    home: EngineHome, command: tuple[str, ...], name: str
) -> None:
    done = home.run(*command, "--model", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: Invalid value for '--model': it is empty; give a GGUF file or a known name" in done.stderr


def test_a_cache_folder_that_can_not_be_one_is_told(home: EngineHome, tmp_path: Path) -> None:
    done = home.run("serve", "--cache-dir", " ")
    assert done.returncode == 2
    assert "it is empty; give a folder" in done.stderr
    (tmp_path / "file").touch()
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda line, **_: told.append(line))
        _tell_if_unusable(tmp_path / "file" / "below")
        _tell_if_unusable(tmp_path / "new" / "below")
    assert told == [
        f"draftline: prompts can't be kept in {tmp_path}/file/below: {tmp_path}/file is not a folder; "
        "the engine serves without"
    ]


def test_an_empty_variable_counts_as_unset(home: EngineHome) -> None:
    assert "\n  model       embedded (the default): " in home.run("doctor", DRAFTLINE_MODEL="").stdout


@pytest.mark.parametrize("command", [("complete", "x.py:1:1"), ("serve",), ("lsp",), ("doctor",), ("profile",)])
def test_a_variable_of_blanks_is_a_mistake_too(home: EngineHome, command: tuple[str, ...]) -> None:
    done = home.run(*command, DRAFTLINE_MODEL=" ")
    assert (done.returncode, done.stdout) == (2, "")
    assert "DRAFTLINE_MODEL holds blanks alone" in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", [("complete", "{file}:1:1"), ("serve",), ("doctor",), ("profile",)])
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_missing_model_is_one_line_and_one_code_and_names_the_variable_it_came_from(
    home: EngineHome, tmp_path: Path, command: tuple[str, ...], by_variable: bool
) -> None:
    file = tmp_path / "x.py"
    file.write_text("x = \n")
    missing = "/no\x1b[31m\n.gguf"
    arguments = [word.format(file=file) for word in command]
    if by_variable:
        done = home.run(*arguments, DRAFTLINE_MODEL=missing)
    else:
        done = home.run(*arguments, *([missing] if command == ("profile",) else ["--model", missing]))
    told = done.stdout if command == ("doctor",) else done.stderr
    line = next(line for line in told.splitlines() if "there is no model file" in line)
    assert done.returncode == 1
    assert r"there is no model file /no\x1b[31m\n.gguf and no model of that name" in line
    assert line.endswith(" (DRAFTLINE_MODEL asked for it)") == by_variable
    assert "\x1b" not in done.stdout + done.stderr
    assert command == ("doctor",) or done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["doctor", "stop", "serve"])
def test_a_relative_runtime_directory_is_an_error_and_is_not_made(
    home: EngineHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = home.run(command, DRAFTLINE_RUNTIME_DIR="rel")
    assert done.returncode == 1
    told = "DRAFTLINE_RUNTIME_DIR is 'rel', which is no absolute path; set it to one that begins with /"
    assert told in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-", "<{garbage}"])
def test_a_language_server_that_no_editor_talks_to_says_what_it_is_for(
    home: EngineHome, tmp_path: Path, redirection: str
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("hello\n\nthere\n")
    done = in_shell(home, f"lsp {redirection.format(garbage=garbage)}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("draftline: lsp is for editors")


def test_a_language_server_at_a_terminal_says_so_at_once(home: EngineHome) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*REAL_COMMAND, "lsp"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("draftline: lsp is for editors")
        process.terminate()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("fault", ["name", "type", "context", "zero", "ones", "fim"])
def test_doctor_refuses_what_the_engine_would(home: EngineHome, fault: str) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        if fault == "name":
            tensors["blk.0.ffn_uq.weight"] = tensors.pop("blk.0.ffn_up.weight")
        elif fault == "type":
            metadata["tokenizer.ggml.token_type"][5] = 76
        elif fault == "zero":
            tensors["output_norm.weight"][:] = 0
        elif fault == "ones":
            tensors["blk.0.ffn_up.weight"].view("uint32")[:] = 0xFFFFFFFF
        elif fault == "fim":
            tokens = metadata["tokenizer.ggml.tokens"]
            tokens[tokens.index("<|fim_middle|>")] = "<|elsewhere|>"
            del metadata["tokenizer.chat_template"]

    assert Settings().max_tokens == ANSWER_TOKENS
    context = 16 if fault == "context" else 4096
    path = write_tiny_model(home.places.runtime / "m.gguf", edit=edit, context_length=context)
    done = home.run("doctor", "--model", str(path))
    assert done.returncode == 1
    told = next(line for line in done.stdout.splitlines() if line.startswith("! "))
    assert {
        "name": "tensor blk.0.ffn_up.weight: it is missing",
        "type": "tokens of the unknown type 76",
        "context": "a context of 16 tokens leaves no room for a prompt and an answer of 96",
        "zero": "tensor output_norm.weight: all of it is zero",
        "ones": "tensor blk.0.ffn_up.weight: it holds numbers that are not finite",
        "fim": "has no <|fim_middle|>: it can't fill in the middle",
    }[fault] in told


def test_u44_a_chat_model_without_markers_completes(home: EngineHome) -> None:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        tokens[tokens.index("<|fim_middle|>")] = "<|elsewhere|>"

    path = write_tiny_model(home.places.runtime / "m.gguf", edit=edit)
    source = home.places.runtime / "a.py"
    source.write_text("import os\nx = \n")
    done = home.run("complete", f"{source}:2:4", "--model", str(path))
    assert "can't fill in" not in done.stderr + done.stdout
    assert done.returncode in (0, 1), done.stderr  # 1: the model has nothing to say
    assert home.health().chat


def test_doctor_without_an_engine_and_with_one(home: EngineHome) -> None:
    missing = str(home.places.runtime / "nowhere.gguf")
    done = home.run("doctor", "--model", missing)
    assert done.returncode == 1
    found = [line.split(maxsplit=1) for line in done.stdout.replace("! ", "  ").splitlines()]
    assert ["model", f"there is no model file {missing} and no model of that name; known models: embedded"] in found
    assert ["engine", "not running; the first completion starts it"] in found
    assert ["runtime", str(home.places.runtime)] in found
    assert done.stdout.startswith("  draftline ")
    assert done.stdout.count("\n! ") == 1
    health = home.serve()
    done = home.run("doctor", "--model", missing)
    assert f"ready: process {health.pid}, version {__version__}, up " in done.stdout
    assert " s, 0 requests at work\n" in done.stdout
    assert f"model {health.model}" in done.stdout
    assert f"{home.places.socket} and {home.url}" in done.stdout


def test_doctor_names_the_model_of_the_next_completion(home: EngineHome) -> None:
    path = write_tiny_model(home.places.runtime / "tiny.gguf")
    pid = home.serve("--model", str(path)).pid
    assert f"  model       tiny (the engine holds it): {path}\n" in home.run("doctor").stdout
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: process_is_gone(pid))
    assert "  model       tiny (it ran last; `--model embedded` or `draftline stop` goes" in home.run("doctor").stdout
    home.run("stop")
    assert "  model       embedded (the default): " in home.run("doctor").stdout


def test_workspace_with_folders_of_our_names_is_never_imported(tmp_path: Path) -> None:
    """Every way into the program, from inside such a workspace and with it on PYTHONPATH where an engine is started."""
    marker = tmp_path / "imported"
    workspace = tmp_path / "workspace"
    for name in ("server", "lsp", "prompts", "models", "typing_extensions"):
        package = workspace / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\nraise SystemExit(77)\n")
    (workspace / "httpx.py").write_text(f"open({str(marker)!r}, 'a').write('httpx')\nraise SystemExit(77)\n")
    (workspace / "main.py").write_text("x = \n")
    with engine_home() as home:
        model = home.model("not-a-model.gguf")
        environment = os.environ | home.environment
        script = Path(sys.executable).with_name("draftline")
        command = [str(script)] if script.exists() else REAL_COMMAND
        for arguments in (["--version"], ["doctor"], ["stop"], ["complete", "main.py:1:5", "--model", str(model)]):
            done = subprocess.run(
                [*command, *arguments], cwd=workspace, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode in (0, 1), done.stderr
        assert done.stderr.startswith(f"draftline: {model}: ")  # the engine process was started and spoke

        program = (
            "import asyncio, os; from server.client import EngineClient, EngineUnavailable\n"
            "os.environ['PYTHONPATH'] = os.getcwd()\n"
            f"try: asyncio.run(EngineClient.connect(model={str(model)!r}))\n"
            "except EngineUnavailable as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            cwd=workspace,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.startswith(f"{model}: "), done.stderr
    assert not marker.exists(), marker.read_text()


def test_stop_of_nothing(home: EngineHome) -> None:
    done = home.run("stop")
    assert (done.returncode, done.stdout) == (0, "no engine is running\n")


def test_interrupt_while_the_command_loads_leaves_no_traceback() -> None:
    program = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from server.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_deleted_working_directory_is_no_obstacle(home: EngineHome, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *REAL_COMMAND, "complete", "x.py:1:1"],
        cwd=folder,
        env=os.environ | home.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (2, "draftline: there is no file x.py\n")


def test_doctor_tells_an_engine_that_starts_from_one_that_hangs(home: EngineHome) -> None:
    lock = EngineLock.acquire(home.places.lock)
    assert lock is not None
    with contextlib.closing(lock):
        arguments = ("doctor", "--model", str(home.places.runtime / "nowhere.gguf"))
        assert f"process {os.getpid()} is just starting or ending; ask again" in home.run(*arguments).stdout
        with contextlib.closing(bind_socket(home.places.socket)):
            assert f"process {os.getpid()} does not answer" in home.run(*arguments).stdout


def test_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(home: EngineHome) -> None:
    program = (
        "import sys; sys.modules['server.process.stop'] = None; sys.argv = ['draftline', 'stop']\n"
        "from server.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | home.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("draftline: unexpected ModuleNotFoundError: ")
    assert done.stderr.endswith(f"; details are in {home.places.log}\n")
    assert done.stderr.count("\n") == 1
    assert "Traceback" in home.log()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirection", "why"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor"), (">&- <&-", "Bad file descriptor")],
)
@pytest.mark.parametrize("arguments", ["--version", "--help", "stop", "doctor --model /nowhere", "complete {file}:1:5"])
def test_output_that_cannot_be_written_is_one_line_and_a_failure(
    home: EngineHome, tmp_path: Path, arguments: str, redirection: str, why: str, unbuffered: str
) -> None:
    file = tmp_path / "main.py"
    file.write_text("x = \n")
    if arguments.startswith("complete"):
        home.serve()
    done = in_shell(home, f"{arguments.format(file=file)} {redirection}", PYTHONUNBUFFERED=unbuffered)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("shown: ")]
    assert (done.returncode, lines) == (1, [f"draftline: standard output can't be written: {why}"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_engine_whose_output_cannot_be_written_serves_and_says_so_at_its_end(
    home: EngineHome, redirection: str, unbuffered: str
) -> None:
    served = start_in_shell(home, f"serve --model {home.model()} {redirection}", PYTHONUNBUFFERED=unbuffered)
    wait_until(lambda: home.health_if_ready(), 60)
    assert home.run("stop").returncode == 0
    _, told = served.communicate(timeout=30)
    assert served.returncode == 1
    assert told.startswith("draftline: standard output can't be written: ")
    assert told.count("\n") == 1


def test_reader_that_leaves_early_is_told_nothing(home: EngineHome) -> None:
    done = in_shell(home, "doctor --model /nowhere | true")
    assert (done.stdout, done.stderr) == ("", "")


def test_nothing_meant_for_a_closed_standard_error_ends_up_in_the_output(home: EngineHome, tmp_path: Path) -> None:
    file = tmp_path / "main.py"
    file.write_text("x = \n")
    home.serve()
    done = in_shell(home, f"complete {file}:1:5 2>&-")
    assert (done.returncode, done.stdout) == (0, "abcdefghijklmnopqrstuvwxyz\n")
    done = in_shell(home, "complete nowhere.py:1:1 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


def in_shell(home: EngineHome, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``draftline LINE`` with whatever redirections the line has."""
    process = start_in_shell(home, line, **environment)
    out, told = process.communicate(timeout=60)
    return subprocess.CompletedProcess(line, process.returncode, out, told)


def start_in_shell(home: EngineHome, line: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        f"{shlex.join(word for word in home.command if word != '-E')} {line}",
        shell=True,
        env=os.environ | home.environment | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
