"""``/v1/completions`` through a real process, as OpenAI clients use it."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from engine_process import EngineHome, wait_until

PATH = "/v1/completions"
Json = dict[str, Any]


def chunks(answer: httpx.Response) -> list[Json]:
    """The events of a stream, ``[DONE]`` checked and left out."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]


def test_whole_answer_with_usage(api: httpx.Client) -> None:
    answer = api.post(PATH, json={"prompt": "hello", "max_tokens": 4, "model": "scripted"}).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "scripted"
    assert answer["choices"] == [{"index": 0, "text": "abcd", "logprobs": None, "finish_reason": "length"}]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 4, 9)
    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 4}


@pytest.mark.parametrize("content", ["old text", [{"type": "text", "text": "old "}, {"type": "text", "text": "text"}]])
def test_a_prediction_reaches_the_engine_in_tokens(api: httpx.Client, content: object) -> None:
    request = {"prompt": "hello", "max_tokens": 4, "prediction": {"type": "content", "content": content}}
    answer = api.post(PATH, json=request).json()
    assert answer["choices"][0]["text"] == "abcd"
    assert answer["draftline"]["copied"] == len("old text")
    for nothing in (None, {"type": "content", "content": ""}, {"type": "content", "content": []}):
        assert api.post(PATH, json={**request, "prediction": nothing}).json()["draftline"]["copied"] == 0


def test_usage_tells_what_was_cached(api: httpx.Client) -> None:
    for cached in (0, 5):
        answer = api.post(PATH, json={"prompt": "cached", "max_tokens": 4}).json()
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert answer["draftline"]["reused"] == cached


def test_u41_answer_carries_the_engines_figures(api: httpx.Client) -> None:
    figures = api.post(PATH, json={"prompt": "hello"}).json()["draftline"]
    wanted = {"reason", "ttft_ms", "prefilled", "reused", "drafted", "accepted", "tokens_per_second"}
    assert wanted <= set(figures)


def test_default_length_is_sixteen_tokens(api: httpx.Client) -> None:
    assert api.post(PATH, json={"prompt": "hello"}).json()["choices"][0]["text"] == "abcdefghijklmnop"


def test_streamed_text_equals_whole_text(api: httpx.Client) -> None:
    request = {"prompt": "hello", "max_tokens": 40}
    whole = api.post(PATH, json=request).json()
    events = chunks(api.post(PATH, json={**request, "stream": True}))
    assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + ["length"]
    assert len({e["id"] for e in events}) == 1
    assert events[-1]["usage"]["completion_tokens"] == 40


def test_usage_comes_in_a_chunk_of_its_own_when_asked(api: httpx.Client) -> None:
    request = {"prompt": "hello", "stream": True, "stream_options": {"include_usage": True}}
    *others, last = chunks(api.post(PATH, json=request))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 16
    assert all("usage" not in event for event in others)


def test_suffix_takes_the_fill_in_the_middle_route(api: httpx.Client, api_home: EngineHome) -> None:
    before = len(api_home.log())
    answer = api.post(PATH, json={"prompt": "before", "suffix": "after", "max_tokens": 3}).json()
    assert answer["choices"][0]["text"] == "abc"
    assert answer["usage"]["prompt_tokens"] == len("before") + len("after") + 3
    wait_until(lambda: "route=fim" in api_home.log()[before:])


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("d", "abc"),
        (["x", "fg"], "abcde"),
        (["z\na"], "abcdefghijklmnopqrstuvwxy"),
        (["!"], "abcdefghijklmnopqrstuvwxyz\nabc"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_also_across_tokens(api: httpx.Client, stop: object, text: str, stream: bool) -> None:
    answer = api.post(PATH, json={"prompt": "hello", "max_tokens": 30, "stop": stop, "stream": stream})
    events = chunks(answer) if stream else [answer.json()]
    assert "".join(e["choices"][0]["text"] for e in events) == text
    assert events[-1]["choices"][0]["finish_reason"] == ("length" if stop == ["!"] else "stop")


def test_beginning_of_a_stop_string_that_does_not_come_is_shown(api: httpx.Client) -> None:
    request = {"prompt": "hello", "max_tokens": 4, "stop": "cdx", "stream": True}
    assert "".join(e["choices"][0]["text"] for e in chunks(api.post(PATH, json=request))) == "abcd"


def test_u39_unknown_model_is_a_404_with_the_known_ones(api: httpx.Client) -> None:
    answer = api.post(PATH, json={"prompt": "hello", "model": "gpt-4o"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["models"]) == (404, "model_not_found", ["scripted"])
    assert error["message"] == "there is no model 'gpt-4o' here; known models: scripted"


def test_models_lists_the_one_model(api: httpx.Client) -> None:
    (model,) = api.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["context_length"]) == ("scripted", "model", 4096)
    assert api.get("/v1/models/scripted").json() == model
    assert api.get("/v1/models/other").status_code == 404


def test_failure_is_a_500_and_an_error_event(api: httpx.Client) -> None:
    answer = api.post(PATH, json={"prompt": "fail!"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "told to fail")
    (event,) = chunks(api.post(PATH, json={"prompt": "fail!", "stream": True}))
    assert event["error"]["message"] == "told to fail"


def test_overflow_is_a_400_with_both_numbers(api: httpx.Client) -> None:
    answer = api.post(PATH, json={"prompt": "x" * 5000, "stream": True})
    error = answer.json()["error"]
    assert (answer.status_code, error["have"], error["limit"]) == (400, 5000, 4096)


WRONG: dict[str, tuple[Json, str, str]] = {
    "no prompt": ({"prompt": None}, "prompt", "this field is required"),
    "prompt of tokens": (
        {"prompt": [1, 2]},
        "prompt",
        "expected one string, alone or in an array (several, or token ids, are not taken), got an array",
    ),
    "prompt number": ({"prompt": 7}, "prompt", "expected a string, got 7"),
    "suffix": ({"suffix": ["x"]}, "suffix", "expected a string, got an array"),
    "n": ({"n": 2}, "n", "expected 1: one answer per request, got 2"),
    "echo": ({"echo": True}, "echo", "expected false: the prompt is not repeated, got a boolean"),
    "logprobs": ({"logprobs": 3}, "logprobs", "expected no value: log probabilities are not offered, got 3"),
    "empty stop": ({"stop": [""]}, "stop", "a stop string must not be empty"),
    "stop number": ({"stop": 5}, "stop", "expected a string or an array of at most 16 strings, got 5"),
    "temperature": ({"temperature": -1}, "temperature", "expected a number from 0 to 100, got -1"),
    "top_k": ({"top_k": 1.5}, "top_k", "expected a whole number from -1 to 1000000, got 1.5"),
    "penalty": ({"presence_penalty": 3}, "presence_penalty", "expected a number from -2 to 2, got 3"),
    "seed": ({"seed": "x"}, "seed", "expected a whole number from"),
    "stream": ({"stream": 1}, "stream", "expected true or false, got 1"),
    "stream_options": ({"stream_options": 1}, "stream_options", "expected an object, got 1"),
    "prediction": ({"prediction": "old"}, "prediction", 'expected an object, got "old"'),
    "prediction of no type": ({"prediction": {"content": "old"}}, "prediction.type", "this field is required"),
    "prediction of another type": (
        {"prediction": {"type": "text", "content": "old"}},
        "prediction.type",
        'expected one of "content", got "text"',
    ),
    "prediction without content": ({"prediction": {"type": "content"}}, "prediction.content", "this field is required"),
    "prediction of a number": (
        {"prediction": {"type": "content", "content": 5}},
        "prediction.content",
        "expected a string or an array of text parts, got 5",
    ),
    "prediction of strings": (
        {"prediction": {"type": "content", "content": ["old"]}},
        "prediction.content[0]",
        'expected an object, got "old"',
    ),
    "prediction of an image": (
        {"prediction": {"type": "content", "content": [{"type": "image", "text": "x"}]}},
        "prediction.content[0].type",
        'expected one of "text", got "image"',
    ),
    "prediction part without text": (
        {"prediction": {"type": "content", "content": [{"type": "text"}]}},
        "prediction.content[0].text",
        "this field is required",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_field_is_named(api: httpx.Client, name: str) -> None:
    change, field, message = WRONG[name]
    answer = api.post(PATH, json={"prompt": "hello", **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, field, "invalid_request_error")
    assert error["message"].startswith(f"{field}: {message}")


def test_every_known_sampling_field_is_taken(api: httpx.Client) -> None:
    request = {
        "prompt": ["hello"],
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.05,
        "seed": 42,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "n": 1,
        "best_of": 1,
        "echo": False,
        "logit_bias": {},
        "user": "me",
        "unknown": {"field": 1},
    }
    assert api.post(PATH, json=request).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_closing_the_connection_cancels(api: httpx.Client, api_home: EngineHome, stream: bool) -> None:
    before = len(api_home.log())
    request = {"prompt": "hello", "max_tokens": 100_000, "stream": stream}
    with api_home.http() as leaving:
        if stream:
            with leaving.stream("POST", PATH, json=request) as answer:
                next(answer.iter_raw())
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post(PATH, json=request, timeout=0.3)
    assert api.post(PATH, json={"prompt": "hello", "max_tokens": 2}).json()["choices"][0]["text"] == "ab"
    assert "reason=cancelled" in api_home.log()[before:]


def test_unknown_routes_and_methods_are_json(api: httpx.Client) -> None:
    answer = api.get("/v1/unknown")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_route")
    offered = "there are GET /health, GET /v1/models and POST /v1/completions"
    assert api.get("/").json()["error"]["message"] == f"there is no GET / here; {offered}"
    chat = api.post("/v1/chat/completions", json={}).json()["error"]["message"]
    assert chat == f"there is no POST /v1/chat/completions here; {offered}; chat is not offered yet"
    answer = api.get(PATH)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        405,
        "/v1/completions does not take GET; use POST",
    )


def test_text_that_can_not_fit_is_refused_without_being_tokenised(api: httpx.Client) -> None:
    """Megabytes take a minute to tokenise. A token of the scripted engine has at most four bytes."""
    error = api.post(PATH, json={"prompt": "x" * 20_000}).json()["error"]
    assert (error["code"], error["have"], error["limit"]) == ("context_overflow", 5000, 4096)
    assert error["message"] == "the prompt has at least 5000 tokens, but the context holds 4096"


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 5000, "1e400"])
@pytest.mark.parametrize("field", ["temperature", "max_tokens", "seed"])
def test_numbers_of_any_size_are_out_of_range_and_nothing_worse(api: httpx.Client, field: str, number: str) -> None:
    answer = api.post(PATH, content=f'{{"prompt": "hello", "{field}": {number}}}')
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_client_that_leaves_before_its_request_is_complete_is_no_error(
    web: httpx.Client, api: httpx.Client, api_home: EngineHome
) -> None:
    before = len(api_home.log())
    with socket.create_connection((web.base_url.host, web.base_url.port or 0)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        api.get("/health")
    assert api.post(PATH, json={"prompt": "after"}).status_code == 200
    assert "Traceback" not in api_home.log()[before:]


def test_path_of_a_request_is_a_literal_in_the_log(api: httpx.Client, api_home: EngineHome) -> None:
    assert api.get("/v1/models/a%00b%1B[31m%E2%80%A8c").status_code == 404
    assert "path='/v1/models/a\\x00b\\x1b[31m\\u2028c'" in api_home.log()
    assert not {"\0", "\x1b", "\u2028"} & set(api_home.log())
