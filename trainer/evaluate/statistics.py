"""Whether one captioner is better than another: tests, intervals, and pairs for controls.

Values of two captioners come as mappings by series id (or by seed) with the same keys, so that
nothing can be paired wrongly. Source: paper, "statistics"; the tests themselves are text-book ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lineup_fast import counters
from lineup_fast.resampling import mean_interval
from trainer.evaluate.table import Table, paired_values

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """One captioner against another on the same series.

    difference: mean of the first minus mean of the second over the n pairs; low, high: percentile
    bootstrap interval of it (NaN with one source); p: two-sided, of the paired test; p_holm: p
    within its family, equal to p in a family of one.
    """

    metric: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    p_holm: float


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> Floats:
    """a - b for every key, f64[n]; 0 where they differ by rounding alone (1e-12 of the larger).

    Raises:
        ValueError: the keys differ, fewer than two of them, a value that is not finite.
    """
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise ValueError(f"b: expected the keys of a, got {len(odd)} in one only ({odd[0]}, …)")
    if len(a) < 2:
        raise ValueError(f"a: expected at least 2 pairs, got {len(a)}")
    pairs = np.array([(a[key], b[key]) for key in a], dtype=np.float64)
    if not np.isfinite(pairs).all():
        raise ValueError("a, b: expected finite values, got others")
    delta: Floats = pairs[:, 0] - pairs[:, 1]
    delta[np.abs(delta) <= 1e-12 * np.abs(pairs).max(axis=1)] = 0.0
    return delta


def _standardised(delta: Floats) -> float:
    """Mean over its standard error; ±inf where all pairs differ by the same, 0 where by nothing."""
    mean, error = float(delta.mean()), float(delta.std(ddof=1)) / math.sqrt(len(delta))
    if error == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / error


def paired_z(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[float, float]:
    """z and its two-sided p of the mean difference per series (criteria 1 and 2 of the paper).

    Args: value by series id, averaged over rotations and references before. Raises: as
    `differences`.
    """
    z = _standardised(differences(a, b))
    return z, math.erfc(abs(z) / math.sqrt(2.0))


def paired_t(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[float, float]:
    """t and its two-sided p with n - 1 degrees of freedom, pairs by seed (criterion 3).

    Raises: as `differences`.
    """
    from scipy.stats import t as student

    delta = differences(a, b)
    t = _standardised(delta)
    return t, float(2.0 * student.sf(abs(t), len(delta) - 1))


def holm(p: Sequence[float]) -> list[float]:
    """Step-down adjusted p of a family, in the order given; never below the raw ones, at most 1.

    Raises:
        ValueError: a p outside of [0, 1].
    """
    wrong = [value for value in p if not 0.0 <= value <= 1.0]
    if wrong:
        raise ValueError(f"p: expected 0 to 1, got {wrong[0]}")
    adjusted = [0.0] * len(p)
    largest = 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[at]))
        adjusted[at] = largest
    return adjusted


def interval(
    values: Mapping[str, float],
    sources: Mapping[str, str] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over series (2000 resamples).

    sources: by id, where a series was cut from; windows of one source are then drawn together
    (None: every series on its own, as the paper does). Returns (low, high), NaN with one source.
    """
    owners = [id_ if sources is None else sources[id_] for id_ in values]
    return mean_interval(np.array([*values.values()]), owners, level=level, seed=seed)


def compare(
    a: Table, b: Table, sources: Mapping[str, str] | None = None, *, seed: int = 0
) -> Comparison:
    """The paired z-test of two tables, over the series that have a value in both.

    Raises:
        ValueError: tables of different metrics or series, or fewer than two pairs.
    """
    mine, theirs = paired_values(a, b)
    delta = differences(mine, theirs)
    low, high = interval(dict(zip(mine, delta.tolist(), strict=True)), sources, seed=seed)
    p = paired_z(mine, theirs)[1]
    return Comparison(a.metric, len(delta), float(delta.mean()), low, high, p, p)


def family(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with `p_holm` over all of them; which ones belong together is the caller's
    to say (the paper: captioners × columns)."""
    adjusted = holm([one.p for one in comparisons])
    return [replace(one, p_holm=p) for one, p in zip(comparisons, adjusted, strict=True)]


def mark(p: float, *, alpha: float = 0.05) -> str:
    """'*' below alpha, '**' below a fifth, '***' below a fiftieth of it (0.05, 0.01, 0.001)."""
    return "*" * sum(p < alpha / part for part in (1, 5, 50))


def spearman(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Rank correlation of two sets of arm means, such as those of two verifiers; -1 to 1.

    Raises:
        ValueError: the arms differ, fewer than two, or one side is constant (it has no ranks).
    """
    from scipy.stats import spearmanr

    differences(a, b)
    for name, side in (("a", a), ("b", b)):
        if len(set(side.values())) == 1:
            raise ValueError(f"{name}: expected means that differ, got the same for every arm")
    return float(spearmanr([a[arm] for arm in a], [b[arm] for arm in a]).statistic)


def chance_corrected(accuracy: float, k: int) -> float:
    """(accuracy - 1/K) / (1 - 1/K): 0 for guessing, 1 for always right, below 0 for worse."""
    if k < 2:
        raise ValueError(f"k: expected at least 2 candidates, got {k}")
    return (accuracy - 1.0 / k) / (1.0 - 1.0 / k)


def derangement(
    ids: Sequence[str], seed: int, texts: Mapping[str, str] | None = None
) -> dict[str, str]:
    """For every id the id whose caption it gets instead: a permutation without fixed points.

    texts: captions by id; nobody gets a caption equal to its own, unless one caption is that of
    more than half of the ids (then as few as possible do). A pure function of the set of ids,
    seed and texts.

    Raises:
        ValueError: fewer than two ids, or one twice.
    """
    names = sorted(set(ids))
    n = len(names)
    if n < 2 or n != len(ids):
        raise ValueError(f"ids: expected at least 2, each once, got {len(ids)} ({n} different)")
    words = [name if texts is None else texts[name] for name in names]
    order = counters.order(n, "derangement", seed).tolist()
    given = counters.order(n, "derangement", seed, "start").tolist()
    hopeless: set[str] = set()  # captions that cannot be dealt out otherwise any more
    for i in order:
        if words[given[i]] != words[i] or words[i] in hopeless:
            continue
        # Where no caption is in the majority, some j always repairs i and spoils nothing.
        for j in order:
            if words[i] not in (words[j], words[given[j]]):
                given[i], given[j] = given[j], given[i]
                break
        else:
            hopeless.add(words[i])
    for before, i in zip([order[-1], *order], order, strict=False):
        if given[i] == i:  # only within a majority: any exchange leaves equally many repeats
            given[i], given[before] = given[before], given[i]
    return {names[i]: names[given[i]] for i in range(n)}
