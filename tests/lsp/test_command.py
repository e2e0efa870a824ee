"""``draftline complete FILE:LINE:COL``: what is printed, and one clear line for every place that isn't one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import EngineHome, engine_home, wait_until
from fake_engine import FakeEngine
from tiny_model import write_tiny_model

from lsp.command import BadPlace, read_place
from prompts.text import Cursor

FIGURES = ("ttft_ms", "prefilled", "reused", "drafted", "accepted", "tokens_per_second")


@pytest.fixture(scope="module")
def home() -> Iterator[EngineHome]:
    with engine_home() as home:
        home.serve()
        yield home


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "main.py"
    path.write_text("import os\n\ndef größe(a):\n    return \n", encoding="utf-8")
    return path


def test_item_is_printed_and_figures_go_to_stderr(home: EngineHome, source: Path) -> None:
    done = home.run("complete", f"{source}:4:12")
    assert done.returncode == 0
    assert done.stdout == "abcdefghijklmnopqrstuvwxyz\n"
    assert done.stderr.startswith("shown: ")
    assert "tokens prefilled" in done.stderr


def test_u09_u41_json_has_text_reason_and_figures(home: EngineHome, source: Path) -> None:
    done = home.run("complete", f"{source}:4:12", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["text"] == "abcdefghijklmnopqrstuvwxyz"
    assert answer["reason"] == "shown"
    assert all(isinstance(answer[name], int | float) for name in FIGURES)
    assert answer["prefilled"] + answer["reused"] > 0


def test_excluded_file_never_reaches_the_engine(home: EngineHome, tmp_path: Path) -> None:
    secret = tmp_path / ".env"
    secret.write_text("TOKEN=canary\n")
    before = home.log()
    done = home.run("complete", f"{secret}:1:7")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "excluded: an ignored file or one that looks like a secret\n"
    done = home.run("complete", f"{secret}:1:7", "--json")
    assert json.loads(done.stdout)["reason"] == "excluded"
    assert home.log() == before


@pytest.mark.parametrize("text", ["", "\n \t\n"])
def test_blank_file_never_reaches_the_engine(home: EngineHome, tmp_path: Path, text: str) -> None:
    blank = tmp_path / "blank.py"
    blank.write_text(text)
    before = home.log()
    done = home.run("complete", f"{blank}:1:1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "blank: nothing is written in the document yet\n"
    assert json.loads(home.run("complete", f"{blank}:1:1", "--json").stdout)["reason"] == "blank"
    assert home.log() == before


def test_engine_that_cannot_start_is_one_line_and_a_reason(tmp_path: Path, source: Path) -> None:
    with engine_home() as fresh:
        done = fresh.run("complete", f"{source}:4:12", "--json", "--model", str(tmp_path / "nowhere.gguf"))
    assert done.returncode == 1
    assert done.stderr.startswith("draftline: there is no model file")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["reason"] == "error"


def test_model_that_answered_is_named(source: Path) -> None:
    with engine_home() as home:
        home.serve()
        assert home.run("complete", f"{source}:4:12").stderr.endswith(", by the model scripted\n")
        done = home.run("complete", f"{source}:4:12", "--json")
        assert json.loads(done.stdout)["model"] == "scripted"


def test_replaced_engine_is_told_in_one_line(source: Path) -> None:
    with engine_home() as home:
        running = home.serve()
        other = write_tiny_model(home.places.runtime / "other.gguf")
        done = home.run("complete", f"{source}:4:12", "--model", str(other))
        # A busy machine takes long to check the file, and is told so before.
        lines = [line for line in done.stderr.splitlines() if "is being checked" not in line]
        assert lines[0] == (
            f"draftline: the running engine (process {running.pid}) is replaced: it holds the model {running.model}, "
            f"and {other.resolve()} is asked for"
        )


@pytest.mark.parametrize(("in_repository", "shown"), [(True, "pkg/main.py"), (False, "main.py")])
def test_model_sees_the_path_in_the_repository_and_never_the_absolute_one(
    tmp_path: Path, in_repository: bool, shown: str
) -> None:
    file = tmp_path / "shop" / "pkg" / "main.py"
    file.parent.mkdir(parents=True)
    file.write_text("import os\nx = \n")
    if in_repository:
        (tmp_path / "shop" / ".git").mkdir()
    with engine_home() as fresh:
        engine = FakeEngine(fresh.places.runtime)
        try:
            done = fresh.run("complete", f"{file}:2:5", "--json")
        finally:
            engine.close()
    assert json.loads(done.stdout)["text"] == "value"
    (request,) = engine.requests
    assert {segment["path"] for segment in request["segments"]} <= {shown, None}
    assert [segment["path"] for segment in request["segments"] if segment["role"] == "suffix"] == [shown]
    assert str(tmp_path) not in json.dumps(request)
    assert "".join(engine.texts("prefix")) == "import os\nx = "


def test_repository_is_that_of_the_file_and_not_of_the_way_to_it(tmp_path: Path) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "outside.py").write_text("x = \n")
    place = read_place(f"{tmp_path}/repository/../outside.py:1:5")
    assert place.path == tmp_path.resolve() / "outside.py"


def test_bad_place_is_one_line_and_exit_code_2(home: EngineHome) -> None:
    done = home.run("complete", "nowhere.py:1:1")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "draftline: there is no file nowhere.py\n")


def test_place_counts_from_one_in_characters(source: Path) -> None:
    assert read_place(f"{source}:1:1").cursor == Cursor(0, 0)
    assert read_place(f"{source}:3:10").cursor == Cursor(2, 9)
    assert read_place(f"{source}:3:14").cursor == Cursor(2, 13)  # behind the last character
    assert read_place(f"{source}:5:1").cursor == Cursor(4, 0)  # behind the last line end


def test_place_in_a_file_with_colons_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a:1:2.py"
    path.write_text("x = \n")
    assert read_place(f"{path}:1:5").path == path


def test_byte_order_mark_is_not_a_column(tmp_path: Path) -> None:
    path = tmp_path / "bom.py"
    path.write_bytes(b"\xef\xbb\xbfab\r\ncd\r\n")
    place = read_place(f"{path}:1:3")
    assert place.text.startswith("ab")
    with pytest.raises(BadPlace, match=r"line 1 of .* has 2 characters"):
        read_place(f"{path}:1:4")


@pytest.mark.timeout(30)
def test_what_has_no_end_or_no_writer_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    endless = tmp_path / "endless.py"
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        with pytest.raises(BadPlace, match=r"\.py is a pipe or a device; name a file"):
            read_place(f"{path}:1:1")
    huge = tmp_path / "huge.py"
    with huge.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(BadPlace, match="has more than 100 MB"):
        read_place(f"{huge}:1:1")


def test_interrupted_completion_ends_quietly(source: Path) -> None:
    with engine_home() as slow:
        slow.serve(SCRIPTED_TOKEN_MS="1000")
        waiting = subprocess.Popen(
            [*slow.command, "complete", f"{source}:4:12"],
            env=os.environ | slow.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: (health := slow.health()) and health.active)
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate(timeout=20) == ("", "")
        assert waiting.returncode == 130
        wait_until(lambda: "reason=cancelled" in slow.log())


def test_item_is_printed_whatever_the_terminals_encoding(home: EngineHome, source: Path) -> None:
    source.write_text("# «é🙂»\nx = ", encoding="utf-8")
    done = subprocess.run(
        [*(word for word in home.command if word != "-E"), "complete", f"{source}:2:5"],
        env=os.environ | home.environment | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, b"\\xe9\\U0001f642\n")


def test_empty_file_has_one_place(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.touch()
    assert read_place(f"{path}:1:1").cursor == Cursor(0, 0)
    with pytest.raises(BadPlace, match=r"empty\.py has 1 line, and line 2 is asked for"):
        read_place(f"{path}:2:1")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{file}", "expected FILE:LINE:COL, such as main.py:12:5, got '{file}'"),
        ("{file}:3", "expected FILE:LINE:COL, such as main.py:12:5, got '{file}:3'"),
        ("", "expected FILE:LINE:COL, such as main.py:12:5, got ''"),
        (":1:1", "expected FILE:LINE:COL, such as main.py:12:5, got ':1:1'"),
        ("{file}:0:1", "expected FILE:LINE:COL with LINE a whole number from 1, got '0' in '{file}:0:1'"),
        ("{file}:1:0", "expected FILE:LINE:COL with COL a whole number from 1, got '0' in '{file}:1:0'"),
        ("{file}:-1:1", "expected FILE:LINE:COL with LINE a whole number from 1, got '-1' in '{file}:-1:1'"),
        ("{file}:x:1", "expected FILE:LINE:COL with LINE a whole number from 1, got 'x' in '{file}:x:1'"),
        ("{file}:1:", "expected FILE:LINE:COL with COL a whole number from 1, got '' in '{file}:1:'"),
        ("{file}:²:1", "expected FILE:LINE:COL with LINE a whole number from 1, got '²' in '{file}:²:1'"),
        (f"{{file}}:{'9' * 5000}:1", "expected FILE:LINE:COL with LINE a whole number from 1"),
        ("{file}:6:1", "{file} has 5 lines, and line 6 is asked for"),
        (
            "{file}:1:11",
            "line 1 of {file} has 9 characters, so the last column is 10, and column 11 is asked for",
        ),
        ("{folder}:1:1", "{folder} is a directory; name a file"),
        ("{folder}/binary:1:1", "{folder}/binary is not a text file in UTF-8"),
        ("{folder}/latin:1:1", "{folder}/latin is not a text file in UTF-8"),
        ("{folder}/none:1:1", "there is no file {folder}/none"),
        ("{file}/below:1:1", "{file}/below can't be read: Not a directory"),
        ("nul\0:1:1", "nul\0 can't be read: "),
    ],
)
def test_bad_place_is_named(source: Path, place: str, message: str) -> None:
    (source.parent / "binary").write_bytes(b"ab\0cd")
    (source.parent / "latin").write_bytes("größe".encode("latin-1"))
    names = {"file": str(source), "folder": str(source.parent)}
    if place == "":
        source.unlink()
    with pytest.raises(BadPlace) as caught:
        read_place(place.format(**names))
    assert str(caught.value).startswith(message.format(**names))


@pytest.mark.parametrize("place", ["x.py", "x.py:1:0", "x.py:9:9", "a folder:1:1", "x.py:1:1:1", "."])
def test_no_bad_place_ever_shows_a_traceback(home: EngineHome, place: str) -> None:
    done = home.run("complete", place)
    assert done.returncode == 2
    assert done.stderr.startswith("draftline: ")
    assert done.stderr.count("\n") == 1


def test_first_completion_starts_the_engine(source: Path) -> None:
    """Through ``draftline serve`` itself; the model is one that fails to load, which must come back as its line."""
    with engine_home() as fresh:
        model = fresh.model("not-a-model.gguf")
        done = fresh.run("complete", f"{source}:4:12", "--model", str(model))
        assert done.returncode == 1
        assert done.stderr.startswith(f"draftline: {model}: ")
        assert done.stderr.count("\n") == 1
        wait_until(lambda: fresh.health() is None)
