"""The comparison with another engine, without running it."""

import importlib.util
from pathlib import Path

import pytest

from bench.peer import PeerFailed, PeerRun, comparison, read_timings, run_peer


def test_timings_are_read() -> None:
    timings = {
        "prompt_n": 8,
        "prompt_per_second": 700.5,
        "predicted_n": 16,
        "predicted_per_second": 300.25,
        "cache_n": 0,
    }
    assert read_timings(timings) == PeerRun(8, 700.5, 16, 300.25)


def test_ratios_are_ours_over_theirs_by_medians() -> None:
    section = comparison(
        {"decode, speculation on": [50, 100, 900], "decode, speculation off": [30], "prefill 512": [10]},
        {"decode": [200, 200, 1], "prefill 512": [40]},
    )
    facts = dict(section.facts)
    assert facts["ours / llama.cpp, decode, speculation on"].startswith("0.50 ")
    assert facts["ours / llama.cpp, decode, speculation off"].startswith("0.15 ")
    assert facts["ours / llama.cpp, prefill 512"].startswith("0.25 ")
    assert [figure.name for figure in section.figures] == ["llama.cpp, decode", "llama.cpp, prefill 512"]


def test_without_the_package_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PeerFailed, match=r"xllamacpp is not installed.*draftline\[peer\]") as failure:
        run_peer(Path("x.gguf"), [("a", 1)], threads=1, context=64)
    assert "\n" not in str(failure.value)


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
def test_a_peer_that_fails_is_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=r"llama\.cpp ended with status") as failure:
        run_peer(tmp_path / "absent.gguf", [("a", 1)], threads=1, context=64)
    assert "\n" not in str(failure.value)
