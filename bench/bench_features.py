"""φ of many series against numpy's own reductions, each into an output that is used again.

pytest bench/bench_features.py                        ratios, written to bench/results
pytest bench/bench_features.py --benchmark-disable    everything once, nothing timed
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import peers, record
from lineup_fast import kernels


@pytest.mark.parametrize(
    ("n", "steps", "must", "goal"),
    [(1_000, 96, None, None), (100_000, 24, None, None), (100_000, 96, 8, 11)],
)
def test_features(race: Any, n: int, steps: int, must: float | None, goal: float | None) -> None:
    series = np.random.default_rng(0).normal(3.0, 2.0, (n, steps))
    phi, theirs = np.empty((n, 4)), np.empty((4, n))
    kernels.features(series, out=phi, threads=1)
    peers.numpy_features(series, theirs)
    np.testing.assert_allclose(phi, theirs.T, rtol=1e-12)
    got = race(
        lambda: kernels.features(series, out=phi, threads=1),
        lambda: peers.numpy_features(series, theirs),
        rounds=15 if n * steps > 1_000_000 else 101,
    )
    record.row("features", f"{n:,} x {steps}", "numpy", got, must, goal, "to 1e-12")
