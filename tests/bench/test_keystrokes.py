"""What is counted of lines that are typed again."""

from bench.keystrokes import Key, keys_section

KEYS = [
    Key(200, "shown", memory=False, foretold=True),
    Key(2, "shown", memory=True, foretold=True, prefetched=True),
    Key(3, "shown", memory=True, foretold=False),
    Key(90, "cancelled", memory=False, foretold=False),
    Key(1, "mid_word", memory=False, foretold=False),
    Key(150, "empty", memory=False, foretold=False),
]


def test_answers_from_memory_and_given_up_ones_are_told_apart() -> None:
    section = keys_section(KEYS)
    samples = {figure.name: figure.samples for figure in section.figures}
    assert samples["key to item"] == (200, 2, 3)
    assert samples["key to item from the engine"] == (200,)
    facts = dict(section.facts)
    assert facts["keys"] == "6; cancelled 1, empty 1, mid_word 1, shown 3"
    assert facts["foretold"] == "2 of 6 keys"
    assert facts["answers of the engine for a foretold character"] == "1.00"
    assert facts["given up for the next key"] == "1 of 6"
    assert facts["made before they were asked for"] == "1 answers"


def test_nothing_shown_is_no_error() -> None:
    assert dict(keys_section(KEYS[3:]).facts)["answers of the engine for a foretold character"] == "-"
