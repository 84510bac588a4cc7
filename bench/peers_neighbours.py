"""Peers of the neighbour search: nearest windows that overlap little enough, by other libraries.

Every peer takes float64 points [N, 4], the place of each window (windows less than ``reach + 1``
apart overlap too much), k, and the queries as rows of the points; it returns int64 [Q, k].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Points = npt.NDArray[np.float64]
    Rows = npt.NDArray[np.int64]


def ett_like(n: int, steps: int, seed: int = 0) -> tuple[Any, Rows, Rows]:
    """Windows at stride 1 of seven channels: a reverting level, a day, a week, and noise.

    Steps are quarters of an hour. The day and the noise grow and fade, so that features spread as
    those of measured channels do: a query costs scipy's tree about what it costs among ETTm1's.
    Returns the windows [n, steps], source [n], start [n].
    """
    rng = np.random.default_rng(seed)
    per = [n // 7 + (channel < n % 7) for channel in range(7)]
    cut, source, start = [], [], []
    for channel, count in enumerate(per):
        length = count + steps - 1
        quarter = np.arange(length)  # of an hour, as ETTm1 is sampled
        day = np.exp(0.5 * _autoregressive(rng, length, 0.9995)) * rng.uniform(1, 4)
        loud = np.exp(0.5 * _autoregressive(rng, length, 0.9995))
        values = 10 + 4 * _autoregressive(rng, length, 0.9995)
        values += day * np.sin(quarter * 2 * np.pi / 96 + channel)
        values += rng.uniform(0.5, 2) * np.sin(quarter * 2 * np.pi / 672)
        values += loud * _autoregressive(rng, length, 0.9)
        cut.append(np.lib.stride_tricks.sliding_window_view(values, steps))
        source.append(np.full(count, channel))
        start.append(np.arange(count))
    return np.concatenate(cut), np.concatenate(source), np.concatenate(start)


def _autoregressive(rng: np.random.Generator, length: int, keep: float) -> Points:
    from scipy.signal import lfilter

    values: Points = lfilter([np.sqrt(1 - keep**2)], [1, -keep], rng.normal(size=length))
    return values


def _filtered(found: Rows, place: Rows, queries: Rows, reach: int, k: int) -> tuple[Rows, Any]:
    """The first k admissible of each row of candidates, nearest first, and whether there are k."""
    free = np.abs(place[found] - place[queries][:, None]) > reach
    rank = free.cumsum(axis=1)
    enough = rank[:, -1] >= k
    chosen = free & (rank <= k)
    out = np.full((len(queries), k), -1, dtype=np.int64)
    out[enough] = found[enough][chosen[enough]].reshape(-1, k)
    return out, enough


def ckdtree(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """scipy's tree; twice as many candidates for the queries that have too few admissible ones."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points)
    out = np.full((len(queries), k), -1, dtype=np.int64)
    for begin in range(0, len(queries), 20_000):
        left = np.arange(begin, min(begin + 20_000, len(queries)))
        size = 4 * k
        while len(left):
            size = min(size, len(points))
            found = tree.query(points[queries[left]], k=size)[1]
            pools, enough = _filtered(found, place, queries[left], reach, k)
            out[left] = pools
            left = left[~enough] if size < len(points) else left[:0]
            size *= 2
    return out


def ckdtree_all(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """scipy's tree with as many candidates as can be inadmissible, in one call."""
    from scipy.spatial import cKDTree

    size = min(2 * reach + 1 + k, len(points))
    found = cKDTree(points).query(points[queries], k=size)[1]
    return _filtered(found, place, queries, reach, k)[0]


def sklearn_kdtree(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """scikit-learn's tree with as many candidates as can be inadmissible."""
    from sklearn.neighbors import KDTree

    size = min(2 * reach + 1 + k, len(points))
    found = KDTree(points).query(points[queries], k=size)[1]
    return _filtered(found, place, queries, reach, k)[0]


def faiss_flat(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """faiss, all pairs in float32, with as many candidates as can be inadmissible."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points.astype(np.float32))
    size = min(2 * reach + 1 + k, len(points))
    found = index.search(points[queries].astype(np.float32), size)[1]
    return _filtered(found, place, queries, reach, k)[0]


def hnsw(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """hnswlib (approximate) with as many candidates as can be inadmissible."""
    import hnswlib

    size = min(2 * reach + 1 + k, len(points))
    index = hnswlib.Index(space="l2", dim=points.shape[1])
    index.init_index(max_elements=len(points), ef_construction=100, M=16)
    index.set_num_threads(1)
    index.add_items(points.astype(np.float32))
    index.set_ef(2 * size)
    found = index.knn_query(points[queries].astype(np.float32), k=size)[0].astype(np.int64)
    return _filtered(found, place, queries, reach, k)[0]


def all_pairs(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """Every pair in float64, ties to the lower row: what is right."""
    out = []
    for query in queries:
        distance = np.zeros(len(points))
        for column in range(points.shape[1]):
            distance += (points[:, column] - points[query, column]) ** 2
        distance[np.abs(place - place[query]) <= reach] = np.inf
        out.append(np.lexsort((np.arange(len(points)), distance))[:k])
    return np.array(out)


def python_longest_run(a: list[float], b: list[float]) -> int:
    """Longest common run of two lists, O(T²) in plain Python."""
    best = 0
    ending = [0] * (len(b) + 1)
    for value in a:
        grown = [0] * (len(b) + 1)
        for j, other in enumerate(b):
            if value == other:
                run = ending[j] + 1
                grown[j + 1] = run
                if run > best:
                    best = run
        ending = grown
    return best
