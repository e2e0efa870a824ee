"""How keystrokes are counted: those that needed the engine, those along a shown item, and whole items."""

from bench.typed import ITEM_TOKENS, Keystroke, read_status, typing_section


def keystroke(ms: float, *, generated: int = ITEM_TOKENS, memory: bool = False, reason: str = "shown") -> Keystroke:
    return Keystroke(ms, reason, memory, prefilled=3, reused=1000, generated=generated)


def samples(name: str, keystrokes: list[Keystroke]) -> tuple[float, ...]:
    figures = {figure.name: figure.samples for figure in typing_section(keystrokes).figures}
    return figures[name]


KEYSTROKES = [
    keystroke(100),
    keystroke(50, generated=4),
    keystroke(1, generated=0, memory=True),
    keystroke(0.5, generated=0, reason="cancelled"),
    keystroke(120, reason="filtered:repeats"),
]


def test_items_from_memory_and_cancelled_requests_do_not_improve_the_figures() -> None:
    assert samples("every item from the engine", KEYSTROKES) == (100, 50, 120)
    assert samples("items from memory (typed along)", KEYSTROKES) == (1,)


def test_only_whole_items_count_for_the_target() -> None:
    assert samples(f"items of {ITEM_TOKENS} tokens", KEYSTROKES) == (100, 120)
    targets = [figure.name for figure in typing_section(KEYSTROKES).figures if figure.target]
    assert targets == [f"items of {ITEM_TOKENS} tokens"]


def test_the_counts_are_told() -> None:
    facts = dict(typing_section(KEYSTROKES).facts)
    assert facts["keystrokes"] == "5, 3 asked the engine, 1 went along a shown item"
    assert facts["reasons"] == "2 of 3 shown; filtered:repeats 1, shown 2"


def test_a_status_is_read_with_its_counters() -> None:
    last = {
        "reason": "shown",
        "cached": False,
        "prefilled": 3,
        "reused": 1700,
        "generated": 20,
        "drafted": 12,
        "accepted": 9,
        "total_ms": 170.5,
        "ttft_ms": 30.0,
    }
    assert read_status(200.0, last) == Keystroke(200.0, "shown", False, 3, 1700, 20, 12, 9, 170.5, 30.0)
