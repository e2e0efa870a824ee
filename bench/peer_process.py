"""The process that runs llama.cpp: a job comes in on standard input, timings go out on standard output."""

from __future__ import annotations

import json
import sys

import xllamacpp

from bench.peer import RESULT


def main() -> None:
    job = json.load(sys.stdin)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = job["model"]
    parameters.n_ctx = job["context"]
    for cpu in (parameters.cpuparams, parameters.cpuparams_batch):
        cpu.n_threads = job["threads"]
    server = xllamacpp.Server(parameters)
    timings = []
    for prompt, tokens in [job["prompts"][0], *job["prompts"]]:  # the first one warms up
        request = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answer = server.handle_completions(request)
        if "timings" not in answer:
            sys.exit(f"llama.cpp refused a prompt: {json.dumps(answer)[:300]}")
        timings.append(answer["timings"])
    print("\n" + RESULT + json.dumps(timings[1:]), flush=True)


if __name__ == "__main__":
    main()
