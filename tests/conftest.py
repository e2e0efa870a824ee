"""For every test: one arithmetic thread a process. The models here are tiny, and on a busy machine threads that wait
for each other make them many times slower. Set before torch is imported; the processes that tests start inherit it."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
