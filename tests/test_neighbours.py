"""Neighbours: native against twin, which is a plain search over all pairs, and known cases."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from lineup_fast import kernels
from tests.parity import both

pytestmark = pytest.mark.usefixtures("isa")


def _walks(n: int, steps: int, seed: int, decimals: int = 1) -> np.ndarray:
    """Windows at stride 1 of three random walks, so that most near ones overlap."""
    rng = np.random.default_rng(seed)
    per_walk = -(-n // 3)
    walks = rng.normal(size=(3, per_walk + steps)).cumsum(axis=1).round(decimals)
    windows = np.lib.stride_tricks.sliding_window_view(walks, steps, axis=1)[:, :per_walk]
    return np.ascontiguousarray(windows.reshape(-1, steps)[:n])


def _scored(series: np.ndarray) -> np.ndarray:
    phi = kernels.features(series)
    return (phi - phi.mean(0)) / np.where(phi.std(0) > 0, phi.std(0), 1.0)


@pytest.mark.parametrize("steps", [1, 2, 12, 25])
@pytest.mark.parametrize("max_run", [0, 1, 5, 30])
@pytest.mark.parametrize("decimals", [0, 4])
def test_run_rule(steps: int, max_run: int, decimals: int) -> None:
    series = _walks(40, steps, seed=steps)
    found = both("neighbours", _scored(series), series, k=6, max_run=max_run, decimals=decimals)
    for i, row in enumerate(found):
        for j in row[row >= 0]:
            assert kernels.longest_run(series[i], series[j], decimals=decimals) <= max_run


@pytest.mark.parametrize("max_run", [0, 2, 11, 12, 50])
def test_window_rule(max_run: int) -> None:
    series = _walks(45, 12, seed=3)
    source, start = np.repeat([4, 4, 9], 15), np.tile(np.arange(15), 3)
    both(
        "neighbours",
        _scored(series),
        series,
        k=5,
        max_run=max_run,
        decimals=4,
        rule="window",
        source=source,
        start=start,
    )


def test_window_rule_with_starts_far_apart() -> None:
    series = [[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]]
    start = [-(2**63), 2**63 - 1, 2**63 - 2]
    found = both(
        "neighbours",
        [[0.0], [1.0], [2.0]],
        series,
        k=2,
        max_run=0,
        decimals=4,
        rule="window",
        source=[0, 0, 0],
        start=start,
    )
    np.testing.assert_array_equal(found, [[1, 2], [0, -1], [0, -1]])


def test_groups_stay_apart_and_pools_are_padded() -> None:
    series = np.random.default_rng(4).normal(size=(30, 8))
    group = np.random.default_rng(5).integers(0, 6, 30)
    found = both("neighbours", _scored(series), series, k=9, max_run=3, decimals=4, group=group)
    for i, row in enumerate(found):
        others = np.flatnonzero(group == group[i])
        assert sorted(row[row >= 0]) == [j for j in others if j != i][: (row >= 0).sum()]
        assert (row >= 0).sum() == min(9, len(others) - 1)
        assert (np.diff((row >= 0).astype(int)) <= 0).all()


def test_ties_go_to_the_lower_index() -> None:
    series = np.arange(12.0).reshape(6, 2) * 7
    found = both("neighbours", np.zeros((6, 3)), series, k=3, max_run=1, decimals=4)
    np.testing.assert_array_equal(found[0], [1, 2, 3])
    np.testing.assert_array_equal(found[4], [0, 1, 2])


def test_many_equal_distances_beyond_the_first_batch() -> None:
    rng = np.random.default_rng(6)
    series = rng.normal(size=(300, 4)).round(3)
    z = rng.integers(0, 2, (300, 1)).astype(float)
    both("neighbours", z, series, k=60, max_run=1, decimals=4)


@pytest.mark.parametrize("rule", ["run", "window"])
def test_duplicates_are_never_neighbours(rule: str) -> None:
    series = np.array([[1.0, 0.0], [1.0, -0.0], [5.0, 6.0], [1.0, 0.0]])
    found = both(
        "neighbours",
        _scored(series),
        series,
        k=3,
        max_run=2,
        decimals=4,
        rule=rule,
        source=[0, 1, 2, 3],
        start=[0, 0, 0, 0],
    )
    np.testing.assert_array_equal(found, [[2, -1, -1], [2, -1, -1], [0, 1, 3], [2, -1, -1]])


@pytest.mark.parametrize(("scale", "decimals"), [(1e-12, 16), (1e12, 4)])
def test_extreme_magnitudes(scale: float, decimals: int) -> None:
    series = _walks(40, 12, seed=7) * scale
    both("neighbours", _scored(series), series, k=4, max_run=2, decimals=decimals)


def test_one_series_has_no_neighbour() -> None:
    found = both("neighbours", [[1.0]], [[1.0, 2.0]], k=2, max_run=1, decimals=4)
    np.testing.assert_array_equal(found, [[-1, -1]])


def test_constant_series() -> None:
    series = np.repeat([[1.0], [2.0], [1.0], [3.0]], 10, axis=1)
    found = both("neighbours", _scored(series), series, k=2, max_run=2, decimals=4)
    np.testing.assert_array_equal(found, [[1, 3], [0, 2], [1, 3], [1, 0]])


def test_threads_change_nothing() -> None:
    series = _walks(500, 24, seed=8)
    z = _scored(series)
    found = [
        kernels.neighbours(z, series, k=8, max_run=4, decimals=4, threads=t) for t in (1, 2, 5)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


_GOOD = {"k": 1, "max_run": 1, "decimals": 4}


@pytest.mark.parametrize(
    ("z", "series", "options", "text"),
    [
        ([[0.0]], [[1.0], [2.0]], {}, "z: expected 2 rows as in series, got 1"),
        ([[np.nan]], [[1.0]], {}, "z: expected finite values, got nan at row 0, step 0"),
        ([[1.0]], [[np.inf]], {}, "series: expected finite values, got inf at row 0, step 0"),
        ([[1.0]], [[1.0]], {"k": 0}, "k: expected 1 to 1048576, got 0"),
        ([[1.0]], [[1.0]], {"max_run": -1}, "max_run: expected 0 to 2147483647, got -1"),
        ([[1.0]], [[1.0]], {"rule": "time"}, "rule: expected run or window, got 'time'"),
        (
            [[1.0]], [[1.0]], {"rule": "window", "source": [0]},
            "source, start: expected with rule 'window', got None",
        ),
        ([[1.0]], [[1.0]], {"group": [0, 1]}, "group: expected 1 entries as in series, got 2"),
        ([[1.0]], [[1.0]], {"group": [0.5]}, "group: expected int32 [N], got dtype float64"),
        (
            [[1.0]], [[1.0]], {"group": [2**31]},
            "group: expected int32 [N], got 2147483648 to 2147483648",
        ),
    ],
)  # fmt: skip
def test_bad_input(z: object, series: object, options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        both("neighbours", z, series, **(_GOOD | options))
    assert str(caught.value) == text


def test_other_python_threads_run_meanwhile() -> None:
    rng = np.random.default_rng(9)
    z, series = rng.normal(size=(8000, 8)), rng.normal(size=(8000, 24))
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = turns
        kernels.neighbours(z, series, k=32, max_run=4, decimals=4, threads=1)
        during = turns - before
    finally:
        done.set()
        counter.join()
    assert during > 100
