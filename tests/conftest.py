"""For every test: what the processes that tests start must not inherit from whoever runs the tests.

Arithmetic has one thread a process: the models here are tiny, and on a busy machine threads that wait for each other
make them many times slower (set before torch is imported). SIGINT isn't ignored: a shell ignores it for what it starts
in the background, and with it everything below.
"""

from __future__ import annotations

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
