"""The native endpoint through a real process: segments in, events out, and what is refused."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import httpx
import pytest
from engine_process import EngineHome, wait_until

PATH = "/draftline/v1/complete"
Json = dict[str, Any]


def body(text: str = "a prompt", **more: Any) -> Json:
    return {"route": "plain", "segments": [{"role": "text", "text": text}], "max_tokens": 5, **more}


def ask(http: httpx.Client, value: Json) -> tuple[str, Json]:
    answer = http.post(PATH, json=value)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line) for line in answer.text.splitlines() if line]
    assert [list(event) for event in events[:-1]] == [["text"]] * (len(events) - 1)
    return "".join(event["text"] for event in events[:-1]), events[-1]["finished"]


def test_answer_is_text_and_then_one_end_with_counters(api: httpx.Client) -> None:
    text, finished = ask(api, body())
    assert text == "abcde"
    assert finished["reason"] == "length"
    assert finished["counters"]["generated"] == 5
    assert finished["segment_tokens"] == [8]


def chat(**texts: str) -> Json:
    return {"route": "chat", "segments": [{"role": role, "text": text} for role, text in texts.items()]}


def test_a_chat_goes_through_the_models_own_template(api: httpx.Client) -> None:
    assert api.get("/health").json()["chat"] is True
    text, finished = ask(api, chat(system="Be brief. ", user="Say «hello <think>»."))
    assert text == "hello <think>"
    assert finished["segment_tokens"] == [
        0,
        len("[system|Be brief. ][user|Say «hello <think>».][assistant|no thoughts|"),
    ]


def test_segments_of_a_file_have_no_place_in_a_chat(api: httpx.Client) -> None:
    answer = api.post(PATH, json=body(route="chat"))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "segments[0]: the role 'text' has no place in a chat"


def test_a_long_prompt_tells_how_far_it_is_to_those_who_ask(api: httpx.Client) -> None:
    text, _ = ask(api, body("read slowly!"))
    answer = api.post(PATH, json=body("read slowly!", progress=True))
    events = [json.loads(line) for line in answer.text.splitlines() if line]
    assert events[:2] == [{"prefill": {"done": done, "total": 12}} for done in (6, 12)]
    assert "".join(event["text"] for event in events[2:-1]) == text
    assert "finished" in events[-1]


def test_u41_counters_are_complete(api: httpx.Client) -> None:
    counters = ask(api, body())[1]["counters"]
    wanted = {
        "prompt_tokens",
        "prefilled",
        "reused",
        "generated",
        "drafted",
        "accepted",
        "ttft_ms",
        "tokens_per_second",
    }
    assert wanted <= set(counters)
    assert counters["prefilled"] + counters["reused"] == counters["prompt_tokens"] == 8


def test_first_difference_is_the_first_segment_with_a_token_that_was_not_held(api: httpx.Client) -> None:
    def parts(*texts: str) -> Json:
        return {**body(), "segments": [{"role": "text", "text": text} for text in texts]}

    ask(api, parts("zero", "one", "two"))
    assert ask(api, parts("zero", "one", "twice"))[1]["first_difference"] == 2
    assert ask(api, parts("zero", "One", "twice"))[1]["first_difference"] == 1
    assert ask(api, parts("zero", "One", "twice"))[1]["first_difference"] is None


def test_fim_route_takes_suffix_and_prefix(api: httpx.Client) -> None:
    segments = [{"role": "suffix", "text": "after"}, {"role": "prefix", "text": "before", "checkpoint": True}]
    text, finished = ask(api, {"segments": segments, "max_tokens": 3})
    assert text == "abc"
    assert len(finished["segment_tokens"]) == 2
    assert sum(finished["segment_tokens"]) == finished["counters"]["prompt_tokens"]


def test_line_rule_stops_in_the_engine(api: httpx.Client) -> None:
    text, finished = ask(api, body(stop="line", max_tokens=500))
    assert text == "abcdefghijklmnopqrstuvwxyz"
    assert finished["reason"] == "stop"
    assert finished["counters"]["generated"] < 40


U05 = {
    "JSON": ('{\n  "a": [\n    ', '1,\n    2\n  ],\n  "b": 2\n}', '\n  ],\n  "b": 2\n}\n', "1,\n    2"),
    "shell": ("#!/bin/sh\n", "if a; then\nb\nfi\nc\n", "\nc\n", "if a; then\nb\nfi"),
    "Markdown": ("# T\n\n", "```sh\nif a:\n\n# b\n```\n\nT\n", "\n\nT\n", "```sh\nif a:\n\n# b\n```"),
}


@pytest.mark.parametrize("language", U05)
def test_u05_a_block_is_cut_where_the_text_still_parses(api: httpx.Client, language: str) -> None:
    """The rules themselves are tested in tests/prompts/test_stops.py; here they end a generation."""
    prefix, answer, suffix, kept = U05[language]
    segments = [
        {"role": "file", "path": "answer", "text": f"«{answer}»"},
        {"role": "suffix", "text": suffix},
        {"role": "prefix", "text": prefix},
    ]
    text, finished = ask(api, {"segments": segments, "stop": "block", "max_tokens": 200})
    assert (text, finished["reason"]) == (kept, "stop")
    assert finished["counters"]["generated"] < len(answer)


def test_timeout_is_a_reason(api: httpx.Client) -> None:
    text, finished = ask(api, body(max_tokens=100_000, timeout_ms=60))
    assert text
    assert finished["reason"] == "timeout"


def test_u09_every_request_leaves_one_line_with_its_reason_and_no_text_in_the_log(
    api: httpx.Client, api_home: EngineHome
) -> None:
    before = len(api_home.log())
    ask(api, body("canary-in-the-prompt"))
    api.post(PATH, json=body("canary-in-the-prompt fail!"))
    api.post(PATH, json=body("canary-in-the-prompt", max_tokens="many"))
    wait_until(lambda: api_home.log()[before:].count("\n") >= 3)
    log = api_home.log()[before:]
    assert re.findall(r"completion route=plain reason=(\w+)|refused path=\S+ status=400 (code=\w+)", log) == [
        ("length", ""),
        ("error", ""),
        ("", "code=bad_request"),
    ]
    assert log.count("detail='told to fail'") == 1
    assert "canary" not in api_home.log()


def test_failure_of_the_engine_is_the_reason(api: httpx.Client) -> None:
    text, finished = ask(api, body("fail!"))
    assert (text, finished["reason"], finished["detail"]) == ("", "error", "told to fail")


def test_overflow_names_both_numbers(api: httpx.Client) -> None:
    answer = api.post(PATH, json=body("x" * 5000))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["have"], error["limit"]) == (400, "context_overflow", 5000, 4096)
    assert "5000" in error["message"]
    assert "4096" in error["message"]


def test_a_prediction_reaches_the_engine_in_tokens(api: httpx.Client) -> None:
    for prediction, tokens in (("old text", 8), ("", 0), (None, 0), ("x" * 5000, 5000)):
        text, finished = ask(api, body(prediction=prediction))
        assert (text, finished["counters"]["copied"]) == ("abcde", tokens)


def test_a_prediction_that_can_not_fit_is_refused_without_being_tokenised(api: httpx.Client) -> None:
    """A token of the scripted engine has at most four bytes."""
    answer = api.post(PATH, json=body(prediction="x" * 20_000))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["have"], error["limit"]) == (400, "context_overflow", 5000, 4096)
    assert error["message"] == "the prediction has at least 5000 tokens, but the context holds 4096"
    assert error["param"] == "prediction"


def test_unknown_fields_and_nulls_are_ignored(api: httpx.Client) -> None:
    text, _ = ask(api, body(colour="red", timeout_ms=None, sampling={"mirostat": 2, "seed": None}))
    assert text == "abcde"


def test_lone_surrogates_do_not_break_a_request(api: httpx.Client) -> None:
    raw = json.dumps(body("x \ud83d y \U0001f600")).encode()
    answer = api.post(PATH, content=raw)
    assert answer.status_code == 200
    assert json.loads(answer.text.splitlines()[-1])["finished"]["counters"]["prompt_tokens"] == 7


WRONG: dict[str, tuple[Json, str]] = {
    "no segments": ({"segments": None}, "segments: this field is required"),
    "empty segments": ({"segments": []}, "segments: at least one segment is required"),
    "segments no array": ({"segments": {}}, "segments: expected an array of objects, got an object"),
    "segment no object": ({"segments": ["x"]}, 'segments[0]: expected an object, got "x"'),
    "no role": ({"segments": [{"text": "x"}]}, "segments[0].role: this field is required"),
    "unknown role": (
        {"segments": [{"role": "chat", "text": "x"}]},
        'segments[0].role: expected one of "repo", "file", "suffix", "prefix", "text", "system", "user", got "chat"',
    ),
    "no text": ({"segments": [{"role": "text"}]}, "segments[0].text: this field is required"),
    "text no string": ({"segments": [{"role": "text", "text": 5}]}, "segments[0].text: expected a string, got 5"),
    "route": ({"route": "edit"}, 'route: expected one of "fim", "plain", "chat", got "edit"'),
    "stop": ({"stop": ["x"]}, 'stop: expected one of "none", "line", "block", got an array'),
    "max_tokens zero": ({"max_tokens": 0}, "max_tokens: expected a whole number from 1 to 1000000, got 0"),
    "max_tokens text": ({"max_tokens": "5"}, 'max_tokens: expected a whole number from 1 to 1000000, got "5"'),
    "max_tokens true": ({"max_tokens": True}, "max_tokens: expected a whole number from 1 to 1000000, got a boolean"),
    "timeout": ({"timeout_ms": -1}, "timeout_ms: expected a number from 1 to 3.6e+06, got -1"),
    "priority": ({"priority": 1}, 'priority: expected one of "completion", "edit", "background", got 1'),
    "speculate": ({"speculate": "no"}, 'speculate: expected true or false, got "no"'),
    "prediction": ({"prediction": {"type": "content"}}, "prediction: expected a string, got an object"),
    "sampling": ({"sampling": 3}, "sampling: expected an object, got 3"),
    "temperature": (
        {"sampling": {"temperature": "hot"}},
        'sampling.temperature: expected a number from 0 to 100, got "hot"',
    ),
    "top_p": ({"sampling": {"top_p": 1.5}}, "sampling.top_p: expected a number from 0 to 1, got 1.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_field_is_named(api: httpx.Client, name: str) -> None:
    change, message = WRONG[name]
    answer = api.post(PATH, json={**body(), **change})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1, 2]", b'"text"', b'{"max_tokens": NaN}', b"\xff\xfe", b"[" * 100_000])
def test_bad_json_is_a_400(api: httpx.Client, raw: bytes) -> None:
    answer = api.post(PATH, content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the request's body")


def test_too_large_a_request_is_refused(api: httpx.Client, api_home: EngineHome) -> None:
    answer = api.post(PATH, content=b" " * (17 * 2**20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    with api_home.http() as other:
        answer = other.post(PATH, content=iter([b" " * 2**20] * 17))  # of a length that isn't told
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert ask(api, body())[0] == "abcde"


def test_closing_the_connection_frees_the_engine_within_a_cycle(api: httpx.Client, api_home: EngineHome) -> None:
    before = len(api_home.log())
    with api.stream("POST", PATH, json=body(max_tokens=100_000)) as answer:
        next(answer.iter_raw())
    assert ask(api, body())[0] == "abcde"
    cancelled = re.search(r"reason=cancelled .* generated=(\d+)", api_home.log()[before:])
    assert cancelled
    assert int(cancelled[1]) < 200


def test_closing_a_waiting_request_leaves_the_queue(api: httpx.Client, api_home: EngineHome) -> None:
    endless = body(max_tokens=100_000)
    with api.stream("POST", PATH, json=endless), api_home.http() as other, other.stream("POST", PATH, json=endless):
        assert api.get("/health").json()["active"] == 2
    wait_until(lambda: api.get("/health").json()["active"] == 0, 2)


def test_u32_cancelling_one_request_leaves_the_others_alone(api: httpx.Client, api_home: EngineHome) -> None:
    alone = ask(api, body(max_tokens=60))[0]
    answers: list[str] = []

    def other() -> None:
        with api_home.http() as http:
            answers.append(ask(http, body(max_tokens=60))[0])

    threads = [threading.Thread(target=other) for _ in range(3)]
    with api.stream("POST", PATH, json=body(max_tokens=100_000)) as answer:
        next(answer.iter_raw())
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(20)
    assert answers == [alone] * 3


def test_one_request_too_many_is_a_429_with_a_reason_in_one_line(api: httpx.Client) -> None:
    refused = api.post(PATH, json=body("busy!"))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "busy", "rate_limit_error")
    assert refused.headers["retry-after"] == "1"
    assert "ask again" in error["message"]
    assert "\n" not in error["message"]
    assert ask(api, body())[0] == "abcde"


def test_health_answers_while_the_engine_works(api: httpx.Client, api_home: EngineHome) -> None:
    with api.stream("POST", PATH, json=body(max_tokens=100_000)), api_home.http() as other:
        assert other.get("/health").json()["active"] == 1


def test_a_silent_stream_shows_signs_of_life(api_home: EngineHome) -> None:
    from server.api import streaming
    from server.client import SILENCE_S

    assert streaming.KEEP_ALIVE_S < SILENCE_S / 3


def test_an_engine_that_is_not_the_one_meant_refuses_to_stop(api: httpx.Client) -> None:
    pid = api.get("/health").json()["pid"]
    for when in ("idle", "now"):
        refused = api.post("/draftline/v1/stop", json={"when": when, "pid": pid + 1})
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "another_engine"
        assert refused.json()["error"]["message"] == f"this is the engine process {pid}, and not {pid + 1}"
    assert api.post("/draftline/v1/stop", json={"pid": "1"}).status_code == 400
    assert ask(api, body())[0] == "abcde"
