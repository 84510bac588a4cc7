"""The index of neighbours: native against twin, the one-call form, all pairs, and its file."""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lineup_fast import SlidingWindows, _core, kernels, reference
from lineup_fast.neighbour_index import NeighbourIndex
from tests.conftest import KNOWN

pytestmark = pytest.mark.usefixtures("isa")


def _case(n: int, steps: int, seed: int, dims: int = 4) -> dict[str, Any]:
    """Windows at small strides of three walks, shuffled, some repeated, in two groups."""
    rng = np.random.default_rng(seed)
    walks = rng.normal(size=(3, 3 * n + steps)).cumsum(axis=1).round(1)
    source = rng.integers(0, 3, n).astype(np.int32)
    start = rng.integers(0, 2 * n, n)
    series = np.stack([walks[s, at : at + steps] for s, at in zip(source, start, strict=True)])
    return {
        "z": rng.integers(-2, 3, (n, dims)) * 0.3,
        "series": series,
        "source": source - 1,
        "start": start - n,
        "group": rng.integers(0, 2, n),
    }


def _indexes(case: dict[str, Any], **options: Any) -> list[NeighbourIndex]:
    built = []
    for implementation in (_core, reference):
        with mock.patch.object(kernels, "_impl", implementation):
            built.append(NeighbourIndex(**case, **options))
    return built


@pytest.mark.parametrize("rule", ["run", "window"])
@pytest.mark.parametrize(("steps", "max_run"), [(1, 0), (1, 1), (7, 0), (7, 2), (7, 6), (7, 7)])
def test_native_equals_twin(rule: str, steps: int, max_run: int) -> None:
    members, asked = _case(90, steps, seed=steps), _case(60, steps, seed=steps + 50)
    asked["series"][:20], asked["source"][:20] = members["series"][:20], members["source"][:20]
    asked["start"][:20] = members["start"][:20]
    asked["group"][55:] = 9  # nobody is there
    native, twin = _indexes(members, max_run=max_run, decimals=4, rule=rule)
    pool = native.search(5)
    np.testing.assert_array_equal(pool, twin.search(5))
    one_call = kernels.neighbours(**members, k=5, max_run=max_run, decimals=4, rule=rule)
    np.testing.assert_array_equal(pool, one_call)
    found = native.query(**asked, k=5)
    np.testing.assert_array_equal(found, twin.query(**asked, k=5))
    assert (found[55:] == -1).all()
    assert (found[:50] >= 0).any()

    assert (native.admissible(pool) == (pool >= 0)).all()
    anyone = np.random.default_rng(0).integers(-1, 90, (90, 40))
    allowed = native.admissible(anyone)
    np.testing.assert_array_equal(allowed, twin.admissible(anyone))
    assert allowed.any()
    assert not allowed.all()


@functools.cache
def _twin_pools(dims: int) -> dict[int, Any]:
    with mock.patch.object(kernels, "_impl", reference):
        twin = NeighbourIndex(**_case(150, 6, seed=3, dims=dims), max_run=2, decimals=4)
        return {k: twin.search(k) for k in (1, 8, 9, 300)}


@pytest.mark.parametrize("dims", [1, 2, 4, 5])
def test_dimensions_and_pool_sizes(dims: int) -> None:
    native = NeighbourIndex(**_case(150, 6, seed=3, dims=dims), max_run=2, decimals=4)
    for k, pools in _twin_pools(dims).items():
        np.testing.assert_array_equal(native.search(k), pools)


def test_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEUP_ISA", "mmx")
    with pytest.raises(ValueError, match="LINEUP_ISA: expected plain, avx2 or avx512, got mmx"):
        kernels.neighbours([[1.0]], [[1.0]], k=1, max_run=1, decimals=4)


def test_lacking_instruction_set_is_refused(
    lacking_isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEUP_ISA", lacking_isa)
    text = f"LINEUP_ISA: expected at most {KNOWN[-1]} on this machine, got {lacking_isa}"
    for call in (kernels.build_info, lambda: kernels.features([[1.0]])):
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize("spread", [1e-9, 1e5])
def test_large_pool_equals_all_pairs(spread: float) -> None:
    """Several levels of boxes; windows at stride 1 that stay where they are in memory."""
    n, steps, max_run, k = 9000, 24, 6, 8
    rng = np.random.default_rng(1)
    walk = rng.normal(size=n + steps - 1).cumsum()
    series = np.lib.stride_tricks.sliding_window_view(walk, steps)
    z = kernels.features(series)
    z[::7] *= spread  # far outliers among points that lie close together
    place = np.arange(n)
    index = NeighbourIndex(
        z, series, max_run=max_run, decimals=4, rule="window", source=place * 0, start=place
    )
    found = index.search(k)
    np.testing.assert_array_equal(index.query(z, series, k=k, source=place * 0, start=place), found)
    by_run = NeighbourIndex(z, series, max_run=max_run, decimals=9).search(k)
    np.testing.assert_array_equal(by_run, found)  # a walk never repeats itself by chance
    for i in range(0, n, 149):
        distance = np.zeros(n)
        for column in range(4):
            distance += (z[:, column] - z[i, column]) ** 2
        distance[np.abs(place - i) < steps - max_run] = np.inf
        np.testing.assert_array_equal(found[i], np.lexsort((place, distance))[:k])


def test_series_are_not_copied() -> None:
    values = np.arange(1000.0)
    series = np.lib.stride_tricks.sliding_window_view(values, 10)
    index = NeighbourIndex(np.ones((991, 1)), series, max_run=3, decimals=4)
    assert np.shares_memory(index._arrays[1], values)


@pytest.mark.parametrize("rule", ["run", "window"])
def test_saved_index_answers_the_same(tmp_path: Path, rule: str) -> None:
    case = _case(80, 7, seed=2)
    index = NeighbourIndex(**case, max_run=3, decimals=2, rule=rule)
    index.save(tmp_path / "index")
    again = NeighbourIndex.load(tmp_path / "index", case["series"])
    assert len(again) == 80
    np.testing.assert_array_equal(again.search(6), index.search(6))
    asked = _case(9, 7, seed=4)
    np.testing.assert_array_equal(again.query(**asked, k=6), index.query(**asked, k=6))
    again.save(tmp_path / "index")  # over the old one
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    with mock.patch.object(kernels, "_impl", reference):
        twin = NeighbourIndex.load(tmp_path / "index", case["series"])
    np.testing.assert_array_equal(twin.search(6), index.search(6))


def test_wrong_files_and_series_are_refused(tmp_path: Path) -> None:
    case = _case(40, 5, seed=5)
    path = tmp_path / "index"
    NeighbourIndex(**case, max_run=3, decimals=2).save(path)
    for other in (case["series"][:-1], case["series"] + 1.0, case["series"][:, :-1]):
        with pytest.raises(ValueError, match=r"series: expected the \(40, 5\) series of the index"):
            NeighbourIndex.load(path, other)
    content = path.read_bytes()
    for damaged in (content[:-1], content[:300] + b"\0" + content[301:], content + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="path: expected an undamaged index, got another"):
            NeighbourIndex.load(path, case["series"])
    for another in (b"something else", content.replace(b"index 1\n", b"index 2\n", 1)):
        path.write_bytes(another)
        with pytest.raises(ValueError, match="path: expected a saved neighbour index, got"):
            NeighbourIndex.load(path, case["series"])
    with pytest.raises(FileNotFoundError):
        NeighbourIndex.load(tmp_path / "none", case["series"])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda i: i.search(0), "k: expected 1 to 1048576, got 0"),
        (lambda i: i.query([[1.0]], [[1.0, 2.0]], k=1), "z: expected 2 columns as in the index"),
        (lambda i: i.query([[1.0, 0.0]], [[1.0]], k=1), "series: expected 2 columns as in the"),
        (lambda i: i.query([[1.0, 0.0]], [[1.0, np.nan]], k=1), "series: expected finite values"),
        (lambda i: i.query([[1.0, np.inf]], [[1.0, 0.0]], k=1), "z: expected finite values"),
        (lambda i: i.admissible([[0]]), "pool: expected 2 rows, got 1"),
        (lambda i: i.admissible([[0], [2]]), "pool: expected -1 to 1, got 2"),
        (lambda i: i.admissible([[-2], [0]]), "pool: expected -1 to 1, got -2"),
        (lambda i: i.admissible([[0.0], [1.0]]), r"pool: expected int32 \[N, k\], got dtype"),
    ],
)
def test_bad_arguments(call: Any, text: str) -> None:
    members = {"z": np.eye(2), "series": np.array([[1.0, 2.0], [3.0, 4.0]])}
    for index in _indexes(members, max_run=1, decimals=4):
        with pytest.raises(ValueError, match=text):
            call(index)


def test_threads_may_share_an_index() -> None:
    case = _case(600, 12, seed=6)
    index = NeighbourIndex(**case, max_run=3, decimals=4)
    expected = index.search(8, threads=1)
    found: list[Any] = []
    workers = [threading.Thread(target=lambda: found.append(index.search(8))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for pool in found:
        np.testing.assert_array_equal(pool, expected)


def test_literal_features_and_far_apart_clusters() -> None:
    """Points that float32 could not tell apart but for the centres of their leaves; k beyond what
    is counted; and points so small that their squares vanish."""
    rng = np.random.default_rng(7)
    n, steps = 3000, 8
    series = rng.normal(size=(n, steps))
    series[::2] = 1e7 + 1e-3 * series[::2]
    for z in (kernels.features(series), rng.normal(size=(n, 4)) * 1e-170):
        index = NeighbourIndex(z, series, max_run=1, decimals=9)
        for k in (8, 13, 40):
            found = index.search(k)
            for i in range(0, n, 251):
                distance = np.zeros(n)
                for column in range(4):
                    distance += (z[:, column] - z[i, column]) ** 2
                distance[i] = np.inf
                right = np.lexsort((np.arange(n), distance))[:k]
                np.testing.assert_array_equal(found[i], right)


def test_many_equal_points_do_not_crowd_out_the_nearest() -> None:
    """More points at one distance than a search keeps in mind, more leaves than one node has."""
    rng = np.random.default_rng(8)
    n = 2500
    z = rng.integers(0, 2, (n, 2)) * 1.0
    place = np.arange(n) * 10
    index = NeighbourIndex(
        z, rng.normal(size=(n, 3)), max_run=1, decimals=4, rule="window", source=place, start=place
    )
    for k in (1, 8, 30):
        found = index.search(k)
        for i in range(0, n, 199):
            equal = np.flatnonzero((z == z[i]).all(axis=1))
            np.testing.assert_array_equal(found[i], equal[equal != i][:k])


def test_an_index_takes_little_beside_its_arrays() -> None:
    walk = np.random.default_rng(9).normal(size=60_000).cumsum()
    windows = SlidingWindows.cut([walk[:40_000], walk[40_000:]], 96)
    z = kernels.features(windows)
    by_window = NeighbourIndex(z, windows, max_run=19, decimals=4, rule="window")
    assert 24 * len(windows) < by_window.nbytes <= 32 * len(windows)
    by_run = NeighbourIndex(z, windows, max_run=19, decimals=4, rule="run")
    assert by_run.nbytes <= 40 * len(windows)  # one fingerprint for each value, not for each gram


def test_the_run_rule_is_near_linear() -> None:
    """Four times the windows in less than eight times the CPU time; all pairs would take 16."""
    seconds = []
    for n in (4_000, 16_000):
        walk = np.random.default_rng(10).normal(size=n + 95).cumsum()
        series = np.lib.stride_tricks.sliding_window_view(walk, 96)
        z = kernels.features(series)
        z = (z - z.mean(axis=0)) / z.std(axis=0)
        best = []
        for _ in range(3):
            began = time.process_time()
            NeighbourIndex(z, series, max_run=19, decimals=9, threads=1).search(8, threads=1)
            best.append(time.process_time() - began)
        seconds.append(min(best))
    assert seconds[1] < 8 * seconds[0]
