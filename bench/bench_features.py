"""φ of many series against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.record import cpu_times, row
from lineup_fast import kernels


def numpy_features(series: Any) -> Any:
    """numpy's own reductions, one after the other."""
    return np.stack(
        [series.mean(axis=1), series.std(axis=1), series.min(axis=1), series.max(axis=1)], axis=1
    )


@pytest.mark.parametrize(("n", "steps"), [(1_000, 96), (100_000, 24), (100_000, 96)])
def test_features(benchmark: Any, n: int, steps: int) -> None:
    series = np.random.default_rng(0).normal(3.0, 2.0, (n, steps))
    phi = benchmark.pedantic(kernels.features, (series,), {"threads": 1}, rounds=3)
    np.testing.assert_allclose(phi, numpy_features(series), rtol=1e-12)
    if benchmark.disabled:
        return
    ours, peer = cpu_times(
        {
            "ours": lambda: kernels.features(series, threads=1),
            "numpy": lambda: numpy_features(series),
        },
        rounds=7 if n * steps > 1_000_000 else 101,
    ).values()
    must, goal = (8, 11) if (n, steps) == (100_000, 96) else (None, None)
    row("features", f"{n} x {steps}", "numpy", peer / ours, must, goal, "to 1e-12")
