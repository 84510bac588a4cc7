"""Ctrl+C stops every kernel that can run for long within a second.

The others (features, patches, PNG files, token ids, prompt trees) are a few passes over their
arguments: they end by themselves before they need more memory than machines have.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lineup_fast import charts, kernels
from lineup_fast.neighbour_index import NeighbourIndex

RNG = np.random.default_rng(0)
# Ten dimensions, in which boxes help little, and many neighbours.
POINTS, VALUES = RNG.normal(size=(40_000, 10)), RNG.normal(size=(40_000, 8))
RULES = {"max_run": 2, "decimals": 4}
# All share long runs, so that every pair of them has to be looked at.
ALIKE = np.lib.stride_tricks.sliding_window_view(np.arange(40_095) // 3 % 11 * 1.0, 96)
WIDE = RNG.normal(size=(2000, 2000))
POOL = RNG.integers(0, 2000, (2000, 4000), dtype=np.int32)
LONG = [np.sin(np.arange(1e6) * 0.37)] * 400
SMALL = charts.ChartStyle("small", 168, 84, exact=True)
CAIRO = dataclasses.replace(charts.DEFAULT_STYLE, engine="cairo")

# Each takes far longer than it is given here.
CALLS: dict[str, Callable[[], Any]] = {
    "neighbours": lambda: kernels.neighbours(POINTS, VALUES, k=200, **RULES, threads=1),
    "search": lambda: NeighbourIndex(POINTS[:, :2], ALIKE, **RULES).search(8, threads=1),
    "query": lambda: NeighbourIndex(POINTS, VALUES, **RULES).query(
        POINTS + 0.1, VALUES, k=200, threads=2
    ),
    "admissible": lambda: NeighbourIndex(POINTS[:2000], WIDE, **RULES).admissible(POOL, threads=1),
    "longest_run": lambda: kernels.longest_run(LONG[0], LONG[0], decimals=4),
    "render": lambda: charts.render(LONG, SMALL, threads=1),
    "render, cairo": lambda: charts.render(list(VALUES[:4000]), CAIRO, threads=2),
    "pixel_values": lambda: charts.pixel_values(LONG, SMALL, threads=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_interrupt_stops_a_long_kernel(name: str) -> None:
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(1.0, interrupt)
    # A process that a shell started in the background inherits an ignored SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            CALLS[name]()
        spent = time.process_time() - sent[0]
        timer.join()
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert spent < 1.0  # of the processor, since the machine may be busy with others
    assert kernels.longest_run([1.0], [1.0], decimals=4) == 1  # the calls after it work as before
