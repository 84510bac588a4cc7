"""Eight nearest windows that overlap little enough: all queries, tree included, one thread.

pytest bench/bench_neighbours.py                        ratios, written to bench/results
pytest bench/bench_neighbours.py --benchmark-disable    fewer windows, each once, nothing timed
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from bench import peers
from bench.record import cpu_times, row
from lineup_fast import kernels
from lineup_fast.neighbour_index import NeighbourIndex
from lineup_fast.sliding import SlidingWindows

pytestmark = pytest.mark.timeout(3000)  # slow peers
K, ETA = 8, 0.2
UNTIMED = 20_000  # windows where nothing is timed
# Peer, how many queries it is asked, whether it is exact.
RECORD = (
    (peers.ckdtree_all, 10_000, True),
    (peers.sklearn_kdtree, 10_000, True),
    (peers.faiss_flat, 1_000, True),
    (peers.hnsw, 1_000, False),
)


def _pool(n: int, steps: int) -> dict[str, Any]:
    windows = SlidingWindows.cut(peers.ett_like(n, steps), steps)
    phi = kernels.features(windows)
    return {
        "z": (phi - phi.mean(axis=0)) / phi.std(axis=0),
        "series": windows,
        "max_run": max(1, int(ETA * steps)),
        "decimals": 4,
        "rule": "window",
    }


def _places(pool: dict[str, Any], steps: int) -> tuple[Any, int]:
    """One axis on which windows of different sources are far apart, and how near is too near."""
    windows = pool["series"]
    span = int(windows.start.max()) + 2 * steps
    return windows.source.astype(np.int64) * span + windows.start, steps - pool["max_run"] - 1


def _recall(found: Any, right: Any) -> float:
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, right, strict=True)]))


@pytest.mark.parametrize(
    ("n", "steps", "must", "goal"),
    [
        (10_000, 96, None, None),
        (100_000, 24, 7, 10),
        (100_000, 96, 15, 30),
        (600_000, 96, 15, 30),
    ],
)
def test_window_rule(timed: bool, n: int, steps: int, must: Any, goal: Any) -> None:
    n = n if timed else min(n, UNTIMED)
    pool = _pool(n, steps)
    place, reach = _places(pool, steps)
    points = pool["z"]

    def ours() -> Any:
        return kernels.neighbours(**pool, k=K, threads=1)

    found = ours()
    sample = np.random.default_rng(1).choice(n, 200, replace=False)
    right = peers.all_pairs(points, place, reach, K, sample)
    np.testing.assert_array_equal(found[sample], right)
    every = np.arange(n)
    if not timed:
        return
    theirs = peers.ckdtree(points, place, reach, K, every)
    np.testing.assert_array_equal(theirs, found)
    seconds = cpu_times(
        {"peer": lambda: peers.ckdtree(points, place, reach, K, every), "ours": ours},
        rounds=3 if n < 600_000 else 1,
    )
    ratio = seconds["peer"] / seconds["ours"]
    row("neighbours", f"{n} x {steps}", "scipy cKDTree, k doubling", ratio, must, goal, "all ids")


@pytest.mark.parametrize(("peer", "count", "exact"), RECORD)
def test_other_libraries(timed: bool, peer: Any, count: int, exact: bool) -> None:
    """For the record: a sample of the queries, the cost of the others taken to be the same."""
    n, steps = 100_000 if timed else UNTIMED, 96
    pool = _pool(n, steps)
    place, reach = _places(pool, steps)
    found = kernels.neighbours(**pool, k=K, threads=1)
    queries = np.random.default_rng(2).choice(n, count, replace=False)
    asked: dict[int, float] = {}
    # One query costs what building costs; the first call of all also imports the library.
    for size in (1, 1, count):
        began = time.process_time()
        given = peer(pool["z"], place, reach, K, queries[:size])
        asked[size] = time.process_time() - began
    recall = _recall(given, found[queries])
    assert recall > (0.999 if exact else 0.9)
    if not timed:
        return
    ours = cpu_times({"ours": lambda: kernels.neighbours(**pool, k=K, threads=1)}, rounds=3)["ours"]
    ratio = (asked[1] + (asked[count] - asked[1]) * n / count) / ours
    name = f"{peer.__name__}, {count} queries scaled to all"
    row("neighbours", f"{n} x {steps}", name, ratio, None, None, f"recall {recall:.4f}")


def test_rule_on_values(race: Any) -> None:
    """For the record: the rule on values instead of places, on the same windows."""
    pool = _pool(20_000, 96) | {"decimals": 9}

    def under(rule: str) -> Any:
        return kernels.neighbours(**pool | {"rule": rule}, k=K, threads=1)

    np.testing.assert_array_equal(under("run"), under("window"))
    got = race(lambda: under("run"), lambda: under("window"), rounds=3)
    row("neighbours, values", "20000 x 96", "places (window rule)", got, None, None, "all ids")


def test_run_overlap_of_all_pools(timed: bool) -> None:
    """Whether any series of any pool shares too long a run with its target."""
    n, steps, count = 10_000, 96, 60
    pool = _pool(n, steps)
    windows = dataclasses.replace(pool["series"], values=pool["series"].values.round(2))
    pool |= {"series": windows, "rule": "run"}
    rng = np.random.default_rng(3)
    near = kernels.neighbours(**pool, k=K - 2)
    # Two of eight entries are shifted copies of the target, so that both answers occur.
    shifted = np.arange(n)[:, None] + rng.integers(1, 90, (n, 2))
    pools = np.concatenate([near, np.minimum(shifted, n - 1)], axis=1).astype(np.int32)

    def ours() -> Any:
        return NeighbourIndex(**pool, threads=1).admissible(pools, threads=1)

    found = ours()
    rounded = windows.rows(slice(None)).round(4).tolist()
    asked = [(int(i), at) for i in rng.choice(n, count, replace=False) for at in (0, K - 1)]

    def python() -> list[bool]:
        return [
            i != pools[i, at]
            and peers.python_longest_run(rounded[i], rounded[pools[i, at]]) <= pool["max_run"]
            for i, at in asked
        ]

    answers = [bool(found[i, at]) for i, at in asked]
    assert answers == python()
    assert len(set(answers)) == 2
    if not timed:
        return
    seconds = cpu_times({"ours": ours, "python": python}, rounds=3)
    ratio = seconds["python"] / len(asked) * pools.size / seconds["ours"]
    name = f"plain Python O(T²), {len(asked)} pairs scaled to all"
    row("run overlap of pools", f"{n} x {steps} x {K}", name, ratio, 100, 1000, "answers")


@pytest.mark.slow
def test_five_million_windows_take_two_gigabytes() -> None:
    """The whole process: channels, features, index and pools."""
    command = [sys.executable, "-m", "bench.five_million"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(done.stdout, end="")
    found = json.loads(done.stdout)
    assert found["peak_mib"] <= 2048
    assert found["index_bytes_per_window"] <= 32
    assert found["equal_queries"] == "5 of 5"
