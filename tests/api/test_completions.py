"""``/v1/completions`` through a real process, as OpenAI clients use it."""

from __future__ import annotations

import json
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
        "expected a string or an array of at most 1 strings, got an array",
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
    answer = api.get(PATH)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        405,
        "/v1/completions does not take GET; use POST",
    )
