"""Other Python threads run while a kernel does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lineup_fast import kernels
from tests.every_kernel import calls

CALLS = calls(10_000, threads=1)
TRIES = 40  # a short kernel may be over before the system lets another thread run


@pytest.fixture
def ticks() -> Iterator[list[float]]:
    """Times at which another thread had the interpreter."""
    times: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            times.append(time.perf_counter())
            time.sleep(1e-4)

    clock = threading.Thread(target=tick)
    clock.start()
    yield times
    done.set()
    clock.join()


def _ticks_meanwhile(call: Callable[[], Any], ticks: list[float]) -> int:
    """Ticks in the middle of a call, away from what Python does before and after it."""
    ticks.clear()
    begin = time.perf_counter()
    call()
    took = time.perf_counter() - begin
    inside = np.array(ticks) - begin
    return int(((inside > 0.4 * took) & (inside < 0.8 * took)).sum())


@pytest.mark.parametrize("name", CALLS)
def test_kernel_lets_others_run(name: str, ticks: list[float]) -> None:
    if kernels.IMPLEMENTATION != "native":
        pytest.skip("the twin holds the interpreter")
    assert any(_ticks_meanwhile(CALLS[name], ticks) >= 2 for _ in range(TRIES))


def test_what_holds_the_interpreter_would_be_noticed(ticks: list[float]) -> None:
    numbers = list(range(300_000)) * 2
    # Any: where the machine is busy, a call may wait for its turn after it is through.
    assert any(_ticks_meanwhile(lambda: numbers.count(-1), ticks) < 2 for _ in range(TRIES))
