"""Memory stays flat however many charts are drawn, indexes built and prompts made."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import charts, kernels
from lineup_fast.encoders import ByteEncoder
from lineup_fast.neighbour_index import NeighbourIndex
from lineup_fast.prompt_tokens import PromptBuilder

SLACK = 4 << 20  # bytes: what malloc may keep
RNG = np.random.default_rng(0)
SERIES = [RNG.normal(size=n) * 30 + 50 for n in range(1, 101)]
HEIGHT, WIDTH = charts.DEFAULT_STYLE.height, charts.DEFAULT_STYLE.width


def _resident() -> int:
    """Bytes in use; what was freed goes back to the system first, for it could hide a loss."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _growth(call: Callable[[], Any], times: int) -> int:
    for _ in range(3):
        call()
    before = _resident()
    for _ in range(times):
        call()
    return _resident() - before


@pytest.mark.slow
def test_a_hundred_thousand_charts() -> None:
    """In the default style, into one buffer: 50 bytes lost per chart would be noticed."""
    out = np.empty((100, HEIGHT, WIDTH, 3), np.uint8)
    assert _growth(lambda: charts.render(SERIES, out=out, threads=2), 1000) < SLACK


@pytest.mark.parametrize("engine", ["native", "cairo"])
def test_fresh_buffers_are_given_back(engine: Any) -> None:
    style = charts.ChartStyle("small", 224, 112, engine=engine)
    assert _growth(lambda: charts.render(SERIES, style, threads=2), 50) < SLACK


def test_pixel_values_and_files() -> None:
    values, _ = charts.pixel_values(SERIES[:20])
    image = charts.render(SERIES[:1])[0]
    assert _growth(lambda: charts.pixel_values(SERIES[:20], out=values), 50) < SLACK
    assert _growth(lambda: charts.pixel_values(SERIES[:2]), 100) < SLACK
    assert _growth(lambda: charts.png(image), 1000) < SLACK


def test_indexes_and_their_answers() -> None:
    z, series = RNG.normal(size=(500, 4)), RNG.normal(size=(500, 24))
    rules: dict[str, Any] = {"max_run": 4, "decimals": 4}
    index = NeighbourIndex(z, series, **rules)
    pool = index.search(8)

    def ask() -> None:
        kernels.neighbours(z, series, k=20, **rules)
        NeighbourIndex(z, series, **rules).query(z + 1, series, k=8)
        index.admissible(pool)
        kernels.longest_run(series[0], series[1], decimals=4)
        kernels.features(series)

    assert _growth(ask, 200) < SLACK


def test_prompts() -> None:
    builder = PromptBuilder(ByteEncoder())
    series = RNG.normal(size=(4, 96))
    captions = builder.caption_ids(["It rises and falls."] * 8)

    def write() -> None:
        builder.tree(series, 2, captions)
        builder.number_ids(series, 3)
        kernels.format_numbers(series[0], 2)
        kernels.nice_ticks(0.0, 1.0, 5)

    assert _growth(write, 500) < SLACK


def test_refused_calls_leave_nothing() -> None:
    bad = np.full((200, 96), np.nan)

    def refuse() -> None:
        for call in (
            lambda: kernels.features(bad),
            lambda: kernels.neighbours(bad[:, :4], bad, k=8, max_run=4, decimals=4),
            lambda: charts.render([bad[0]], threads=2),
            lambda: charts.pixel_values([SERIES[9], bad[0]]),
            lambda: kernels.format_numbers(bad[0], 2),
        ):
            with pytest.raises(ValueError, match="expected finite values"):
                call()

    assert _growth(refuse, 200) < SLACK


def test_what_is_lost_would_be_noticed() -> None:
    kept: list[Any] = []
    assert _growth(lambda: kept.append(np.ones(50_000)), 100) > SLACK
