"""What other programs leave of the processors, from made-up and from real kernel statistics."""

import os
import time

import pytest

from server.threads.free_cpus import WINDOW_S, FreeCpus, allowed_cpus, busy_seconds

TICKS = os.sysconf("SC_CLK_TCK")


class System:
    """Two processors and more that aren't ours, with programs that use them."""

    def __init__(self) -> None:
        self.now = self.own = 0.0
        self.others = [0.0] * 4
        self.free = FreeCpus({0, 1}, read=self.stat, own=lambda: self.own, clock=lambda: self.now)

    def stat(self) -> str:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for cpu, seconds in enumerate(self.others):
            busy = seconds + (self.own / 2 if cpu < 2 else 0)
            idle = self.now - busy
            # user, nice, system, idle, iowait, irq, softirq, steal, guest (which is in user already)
            parts = [busy / 4, busy / 4, busy / 4, idle / 2, idle / 2, busy / 8, 0, busy / 8, busy / 4, 0]
            lines.append(f"cpu{cpu} " + " ".join(str(round(part * TICKS)) for part in parts))
        return "\n".join([*lines, "intr 1 2 3", "ctxt 5"])

    def run(self, seconds: float, own: float, *others: float) -> None:
        """So many processors were used, by this process and on each of the processors by others."""
        self.now += seconds
        self.own += own * seconds
        for cpu, used in enumerate(others):
            self.others[cpu] += used * seconds


@pytest.mark.parametrize(
    ("own", "others", "free"),
    [
        (0, (), 2),
        (2, (), 2),
        (1, (), 2),
        (1, (0.1, 0.2), 2),
        (1, (0.2, 0.4), 1),
        (1, (0, 1), 1),
        (0.2, (0.9, 0.9), 1),
        (0, (1, 1), 1),
        (2, (0, 0, 1, 1), 2),
    ],
)
def test_what_others_use_of_our_processors_is_not_free(own: float, others: tuple[float, ...], free: int) -> None:
    system = System()
    system.run(2, own, *others)
    assert system.free() == free


def test_only_what_happened_since_the_last_measurement_counts() -> None:
    system = System()
    system.run(10, 0, 1, 1)
    assert system.free() == 1
    system.run(0.2, 1)
    assert system.free() == 2
    system.run(0.2, 1, 0.5, 0.5)
    assert system.free() == 1


def test_too_short_a_time_keeps_the_last_answer_and_goes_into_the_next() -> None:
    system = System()
    system.run(WINDOW_S / 2, 0, 1, 1)
    assert system.free() == 2
    system.run(WINDOW_S, 0, 1, 1)
    assert system.free() == 1


def test_a_system_that_tells_nothing_leaves_everything() -> None:
    now = [0.0]
    free = FreeCpus({0, 1, 2}, read=lambda: "", own=lambda: now[0], clock=lambda: now[0])
    now[0] = 5.0
    assert free() == 3


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="only where the kernel tells")  # noqa: PTH110
def test_the_real_statistics_count_this_process() -> None:
    def read() -> float:
        with open("/proc/stat") as file:  # noqa: PTH123
            return busy_seconds(file.read(), allowed_cpus())

    before = read()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert read() - before > 0.2
