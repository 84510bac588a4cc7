"""Bootstrap intervals for means of items that come in families."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


def mean_interval(
    values: NDArray[np.float64], sources: Sequence[str], *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean, whole sources drawn with replacement.

    Windows of one source are not independent, so sources are what is resampled (cluster
    bootstrap). Args: values float64 [n], not NaN; sources [n]. Returns: (low, high); both NaN with
    fewer than two sources, of which nothing can be said. Raises: ValueError on unequal lengths.
    """
    if len(values) != len(sources):
        raise ValueError(f"sources: expected one per value ({len(values)}), got {len(sources)}")
    names, member = np.unique(np.asarray(sources, dtype=str), return_inverse=True)
    if len(names) < 2:
        return float("nan"), float("nan")
    sums = np.bincount(member, weights=values, minlength=len(names))
    counts = np.bincount(member, minlength=len(names))
    rng = np.random.Generator(np.random.Philox(key=seed))
    chosen = rng.integers(0, len(names), (RESAMPLES, len(names)))
    means = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
