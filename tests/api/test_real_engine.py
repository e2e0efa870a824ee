"""The whole engine process with a real, if tiny and random, model: from the file to the answer's figures."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import pytest
from engine_process import REAL_COMMAND, EngineHome, engine_home
from tiny_model import Metadata, Tensors, TinyDims, add_metadata, seldom_end, tiny_metadata, write_tiny_model

from prompts.stops import stop_rule

Json = dict[str, Any]
NATIVE = "/draftline/v1/complete"


@pytest.fixture(scope="module")
def home() -> Iterator[EngineHome]:
    with engine_home(REAL_COMMAND) as home:
        home.serve("--model", str(write_tiny_model(home.places.runtime / "tiny.gguf", edit=often_a_line_end)))
        yield home


@pytest.fixture
def http(home: EngineHome) -> Iterator[httpx.Client]:
    with home.http() as client:
        yield client


def often_a_line_end(metadata: Metadata, tensors: Tensors) -> None:
    seldom_end(metadata, tensors)
    tensors["token_embd.weight"][metadata["tokenizer.ggml.tokens"].index("Ċ")] *= 2


def ask(http: httpx.Client, prefix: str, suffix: str = "\n", **more: Any) -> tuple[str, Json]:
    segments = [
        {"role": "suffix", "text": suffix, "checkpoint": True},
        {"role": "prefix", "text": prefix, "checkpoint": True},
    ]
    answer = http.post(NATIVE, json={"segments": segments, "max_tokens": 12, **more})
    assert answer.status_code == 200, answer.text
    events = [json.loads(line) for line in answer.text.splitlines() if line]
    return "".join(event["text"] for event in events[:-1]), events[-1]["finished"]


def lines(count: int) -> str:
    return "".join(f"name_{i} = call({i})\n" for i in range(count))


def test_u41_counters_add_up(http: httpx.Client) -> None:
    _, finished = ask(http, lines(10) + "x = ")
    counters = finished["counters"]
    assert counters["prefilled"] + counters["reused"] == counters["prompt_tokens"] == sum(finished["segment_tokens"])
    assert 0 < counters["ttft_ms"] <= counters["total_ms"]
    assert counters["drafted"] >= counters["accepted"] >= 0


def test_typed_text_reuses_the_prompt_and_says_where_it_differs(http: httpx.Client) -> None:
    before = lines(40)
    ask(http, before + "x = ", suffix="print(before)\n")
    _, finished = ask(http, before + "x = name", suffix="print(before)\n")
    assert finished["counters"]["reused"] > 0
    assert finished["counters"]["prefilled"] < 20
    assert finished["first_difference"] == 1
    assert ask(http, before + "x = name", suffix="print(after)\n")[1]["first_difference"] == 0


def test_first_difference_is_where_the_tokens_differ_however_far_back_the_state_had_to_go(http: httpx.Client) -> None:
    def finished(*prefix: str) -> Json:
        segments = [{"role": "suffix", "text": "z\n"}, *({"role": "prefix", "text": part} for part in prefix)]
        answer = http.post(NATIVE, json={"segments": segments, "max_tokens": 1})
        return dict(json.loads(answer.text.splitlines()[-1])["finished"])

    finished("a b c\n", "d e\n")
    other = finished("a b c\n", "d f\n")
    assert (other["counters"]["reused"], other["first_difference"]) == (0, 2)
    assert finished("a b c\n", "d f\n")["first_difference"] is None


def test_u60_text_is_the_same_streamed_or_not_and_with_or_without_speculation(http: httpx.Client) -> None:
    request = {"prompt": lines(5), "max_tokens": 24, "temperature": 0}
    whole = http.post("/v1/completions", json=request).json()["choices"][0]["text"]
    streamed = http.post("/v1/completions", json={**request, "stream": True}).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole
    plain = {"route": "plain", "segments": [{"role": "text", "text": lines(5)}], "max_tokens": 24}
    for speculate in (True, False):
        answer = http.post(NATIVE, json={**plain, "speculate": speculate}).text
        native = [json.loads(line) for line in answer.splitlines() if line]
        assert "".join(event.get("text", "") for event in native) == whole


def test_seed_repeats_a_sampled_answer(http: httpx.Client) -> None:
    request = {"prompt": lines(3), "max_tokens": 20, "temperature": 1.5, "seed": 7}
    texts = [http.post("/v1/completions", json=request).json()["choices"][0]["text"] for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0] != http.post("/v1/completions", json={**request, "seed": 8}).json()["choices"][0]["text"]


def test_special_tokens_in_a_document_are_ordinary_text(http: httpx.Client) -> None:
    markers = "<|fim_middle|><|endoftext|><think>"
    _, with_markers = ask(http, f"x = '{markers}'")
    _, without = ask(http, "x = ''")
    more = with_markers["counters"]["prompt_tokens"] - without["counters"]["prompt_tokens"]
    assert more > 10  # a control token would be one token each


def test_overflow_is_a_400_with_both_numbers(http: httpx.Client) -> None:
    segments = [{"role": "suffix", "text": ""}, {"role": "prefix", "text": lines(600)}]
    answer = http.post(NATIVE, json={"segments": segments})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["limit"]) == (400, "context_overflow", 4096)
    assert error["have"] > 4096


def test_u32_cancelling_one_of_many_leaves_the_others_alone(http: httpx.Client, home: EngineHome) -> None:
    prompts = [f"value_{i} = " for i in range(4)]
    alone = {prompt: ask(http, prompt)[0] for prompt in prompts}
    answers: dict[str, str] = {}

    def other(prompt: str) -> None:
        with home.http() as client:
            answers[prompt] = ask(client, prompt)[0]

    before = len(home.log())
    endless = {"segments": [{"role": "prefix", "text": lines(20)}], "max_tokens": 3000}
    threads = [threading.Thread(target=other, args=(prompt,)) for prompt in prompts]
    with http.stream("POST", NATIVE, json={**endless, "sampling": {"temperature": 2, "seed": 3}}) as answer:
        next(answer.iter_raw())
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == alone
    reasons = re.findall(r"reason=(\w+)", home.log()[before:])
    assert len(reasons) == 5


def test_closing_the_connection_stops_a_long_prefill(http: httpx.Client, home: EngineHome) -> None:
    before = len(home.log())
    for attempt in range(5):  # on a busy machine the engine may be done before the connection is closed
        segments = [{"role": "suffix", "text": ""}, {"role": "prefix", "text": f"# {attempt}\n{lines(150)}"}]
        with http.stream("POST", NATIVE, json={"segments": segments, "max_tokens": 1}) as answer:
            assert answer.status_code == 200
            next(answer.iter_raw())
        ask(http, "x = ", max_tokens=1)
        ended = re.findall(r"reason=(\w+) prompt=(\d+) reused=(\d+) prefilled=(\d+)", home.log()[before:])
        reason, prompt, reused, prefilled = ended[2 * attempt]
        if reason == "cancelled" and int(reused) + int(prefilled) < int(prompt):
            return
    pytest.fail(f"no prefill was stopped: {ended}")


@pytest.mark.parametrize("rule", ["line", "block"])
def test_u04_the_stop_rule_ends_the_answer_in_the_engine(http: httpx.Client, rule: str) -> None:
    stopped = 0
    for seed in range(8):
        more = {"max_tokens": 30, "sampling": {"temperature": 2, "seed": seed}}
        whole, unstopped = ask(http, "x = ", **more)
        text, finished = ask(http, "x = ", stop=rule, **more)
        decide = stop_rule(rule, "x = ", "\n")
        assert decide is not None
        keep = decide(whole)
        assert text == whole[:keep]
        assert (finished["reason"] == "stop") == (keep is not None)
        assert finished["counters"]["generated"] <= unstopped["counters"]["generated"]
        stopped += keep is not None
    assert stopped >= 3


def test_complete_prints_a_completion_with_its_figures(home: EngineHome, tmp_path: Path) -> None:
    file = tmp_path / "main.py"
    file.write_text(lines(5) + "x = \n")
    done = home.run("complete", f"{file}:6:5", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["reason"] in ("shown", "empty") or answer["reason"].startswith("filtered:")
    assert answer["prefilled"] + answer["reused"] > 20
    assert {"text", "ttft_ms", "drafted", "accepted", "tokens_per_second"} <= set(answer)


def test_doctor_knows_the_model_and_the_executor(home: EngineHome) -> None:
    done = home.run("doctor", "--model", str(home.places.runtime / "tiny.gguf"))
    assert done.returncode == 0, done.stdout
    assert "with an MTP head, context of 4096 tokens" in done.stdout
    assert re.search(r"executor +torch on the CPU: ", done.stdout)


@pytest.mark.parametrize("fault", ["cut off", "no tensors", "too large"])
def test_model_that_cannot_be_loaded_is_one_line(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "model.gguf"
    if fault == "cut off":
        path.write_bytes(write_tiny_model(tmp_path / "whole.gguf").read_bytes()[:300_000])
    elif fault == "no tensors":
        write_tiny_model(path, edit=without_embedding)
    else:
        write_huge_model(path)
    with engine_home(REAL_COMMAND) as home:
        done = home.run("serve", "--model", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    if fault == "too large":
        assert re.match(
            rf"draftline: {path} needs about [12]\d\d\d\.\d GB of memory \([12]\d\d\d\.\d GB of it for the weights\), "
            r"and \d+\.\d GB are available; free some, or name a smaller model with --model\n$",
            done.stderr,
        )
    else:
        assert done.stderr.startswith(f"draftline: {path}: ")


def without_embedding(metadata: Metadata, tensors: Tensors) -> None:
    del tensors["token_embd.weight"]


def write_huge_model(path: Path) -> None:
    """A sound header and a terabyte of tensor that takes no room on the disk."""
    writer = gguf.GGUFWriter(str(path), "qwen35")
    add_metadata(writer, tiny_metadata(TinyDims()))
    for number in range(8):  # fewer tensors than blocks would be another fault
        writer.add_tensor_info(f"small.{number}", [8], np.dtype("float32"), 32)
    writer.add_tensor_info("token_embd.weight", [1 << 19, 1 << 19], np.dtype("float32"), 1 << 40)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate((1 << 40) + (1 << 20))
