"""The benchmark of very large files runs, and types what it says."""

from bench.large_file import LINES, main, text_of


def test_the_files_are_as_large_and_as_their_names_say() -> None:
    texts = {name: text_of(line, 1_000_000) for name, line in LINES.items()}
    assert all(900_000 < len(text) <= 1_000_000 for text in texts.values())
    longest = {name: max(map(len, text.split("\n"))) for name, text in texts.items()}
    assert longest["lines of code"] < 100
    assert 59_000 < longest["60,000-character lines"] < 61_000
    assert "\n" not in texts["one minified line"]


def test_it_runs_through_the_real_process(capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["--quick"]) == 0
    told = capsys.readouterr().out
    assert told.count("a change and an empty request") == len(LINES)
    assert "not measured" not in told
