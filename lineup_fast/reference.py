"""Slow, obvious twins of the native kernels in numpy: the oracle of the tests.

Every function takes what :mod:`lineup_fast.kernels` hands down (contiguous arrays of the right
dtype and rank) and raises the same errors about values as the native one. ``threads`` is accepted
and ignored. The twins of the chart kernels live in :mod:`lineup_fast.reference_charts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int32]
    Longs = npt.NDArray[np.int64]
    Ragged = tuple[Ints, Longs]
    Series = Floats | tuple[Floats, Longs, int]

MAX_MAGNITUDE = 1e150  # beyond it squares, and with them std and distances, overflow


def require_values(name: str, values: Floats) -> None:
    """Raise on NaN, infinities and magnitudes whose square overflows; names the first place."""
    bad = np.argwhere(~(np.abs(values) <= MAX_MAGNITUDE))
    if not len(bad):
        return
    at = tuple(int(i) for i in bad[0])
    place = f"step {at[0]}" if len(at) == 1 else f"row {at[0]}, step {at[1]}"
    if np.isfinite(values[at]):
        msg = f"{name}: expected magnitudes up to 1e150, got {values[at]:.3e} at {place}"
    else:
        msg = f"{name}: expected finite values, got {values[at]} at {place}"
    raise ValueError(msg)


def _rounded(values: Floats, decimals: int) -> Floats:
    """Values rounded half to even; what rounding would overflow is left as it is."""
    scale = 10.0**decimals
    with np.errstate(over="ignore"):
        scaled = np.rint(values * scale) / scale
    return np.where(np.isfinite(scaled), scaled, values)


def rows_of(series: Series) -> Floats:
    """The rows float64 [N, T] of what stands for them."""
    if not isinstance(series, tuple):
        return series
    values, at, steps = series
    rows: Floats = values[at[:, None] + np.arange(steps)]
    return rows


def features(series: Series, threads: int = 0, out: Floats | None = None) -> Floats:
    """Mean, population standard deviation, minimum and maximum of each row, float64 [N, 4]."""
    del threads
    series = rows_of(series)
    require_values("series", series)
    first = series[:, :1]
    mean = first[:, 0] + (series - first).mean(axis=1)  # shifted: exact for constant series
    std = np.sqrt(((series - mean[:, None]) ** 2).mean(axis=1))
    return np.stack([mean, std, series.min(axis=1), series.max(axis=1)], axis=1, out=out)


def longest_run(a: Floats, b: Floats, decimals: int) -> int:
    """Length of the longest contiguous run of equal rounded values, at any relative offset."""
    require_values("a", a)
    require_values("b", b)
    left, right = _rounded(a, decimals), _rounded(b, decimals)
    best = 0
    ending = np.zeros(len(right) + 1, dtype=np.int64)  # [j+1]: run that ends at (i, j)
    for value in left:
        grown = np.zeros_like(ending)
        grown[1:] = np.where(right == value, ending[:-1] + 1, 0)
        ending = grown
        best = max(best, int(ending.max()))
    return best


class NeighbourIndex:
    """Series of one length with their points, searched one pair at a time."""

    def __init__(
        self,
        z: Floats,
        series: Series,
        max_run: int,
        decimals: int,
        rule: str,
        source: Ints,
        start: Longs,
        group: Ints,
        threads: int = 0,
    ) -> None:
        del threads
        series = rows_of(series)
        require_values("z", z)
        require_values("series", series)
        self._z, self._series = z, series
        self._max_run, self._decimals, self._rule = max_run, decimals, rule
        self._source, self._start, self._group = source, start, group

    nbytes = 0  # it keeps nothing of its own

    def _admits(self, j: int, values: Floats, source: int, start: int, group: int) -> bool:
        """Whether member j may be a neighbour of a series."""
        if group != self._group[j] or np.array_equal(values, self._series[j]):
            return False
        if self._rule == "run":
            return longest_run(values, self._series[j], self._decimals) <= self._max_run
        apart = abs(int(start) - int(self._start[j]))
        return source != self._source[j] or len(values) - apart <= self._max_run

    def _nearest(self, k: int, z: Floats, itself: int, *of: Any) -> Ints:
        """The k nearest members that a series ``of`` (values, source, start, group) admits."""
        distance = np.zeros(len(self._z))
        for column in range(z.shape[0]):
            distance += (self._z[:, column] - z[column]) ** 2
        found: list[int] = []
        for j in np.lexsort((np.arange(len(distance)), distance)).tolist():
            if len(found) == k:
                break
            if j != itself and self._admits(j, *of):
                found.append(j)
        return np.array(found + [-1] * (k - len(found)), dtype=np.int32)

    def _members(self) -> list[tuple[Any, ...]]:
        return list(zip(self._series, self._source, self._start, self._group, strict=True))

    def search(self, k: int, threads: int = 0) -> Ints:
        """The k neighbours of every member, int32 [N, k], padded with -1."""
        del threads
        found = [self._nearest(k, self._z[i], i, *of) for i, of in enumerate(self._members())]
        return np.stack(found)

    def query(
        self,
        z: Floats,
        series: Series,
        k: int,
        source: Ints,
        start: Longs,
        group: Ints,
        threads: int = 0,
    ) -> Ints:
        """The k neighbours of series from outside among the members, int32 [M, k]."""
        del threads
        series = rows_of(series)
        require_values("z", z)
        require_values("series", series)
        asked = zip(z, series, source, start, group, strict=True)
        return np.stack([self._nearest(k, point, -1, *of) for point, *of in asked])

    def admissible(self, pool: Ints, threads: int = 0) -> npt.NDArray[np.bool_]:
        """Whether each entry of a pool [N, k] may be a neighbour of its row; false for -1."""
        del threads
        n = len(self._series)
        bad = pool[(pool < -1) | (pool >= n)]
        if len(bad):
            raise ValueError(f"pool: expected -1 to {n - 1}, got {bad[0]}")
        out = np.zeros(pool.shape, dtype=np.bool_)
        for i, of in enumerate(self._members()):
            for at, j in enumerate(pool[i].tolist()):
                out[i, at] = j >= 0 and j != i and self._admits(j, *of)
        return out


def neighbours(
    z: Floats,
    series: Series,
    k: int,
    max_run: int,
    decimals: int,
    rule: str,
    source: Ints,
    start: Longs,
    group: Ints,
    threads: int = 0,
) -> Ints:
    """The k nearest admissible rows for every row, int32 [N, k], padded with -1."""
    index = NeighbourIndex(z, series, max_run, decimals, rule, source, start, group)
    return index.search(k, threads)


def format_numbers(values: Floats, decimals: int, separator: str) -> str:
    """The values with a fixed number of decimals, joined by the separator."""
    require_values("values", values)
    return separator.join(f"{value:.{decimals}f}" for value in values.tolist())


class Numerals:
    """Token ids of printed numbers, by way of their text."""

    def __init__(
        self,
        digits: Ragged,
        first: Ints,
        first_negative: Ints,
        separator: Ints,
        separator_negative: Ints,
        dot: Ints,
        group: int,
    ) -> None:
        self._digits, self._group, self._dot = digits, group, dot
        self._openings = (first, first_negative, separator, separator_negative)

    def _of_digits(self, text: str) -> list[int]:
        ids: list[int] = []
        for at in range(0, len(text), self._group):
            chunk = text[at : at + self._group]
            index = int(chunk) + (0, 10, 110)[len(chunk) - 1]
            offsets = self._digits[1]
            ids.extend(self._digits[0][offsets[index] : offsets[index + 1]].tolist())
        return ids

    def ids(self, values: Floats, decimals: Ints, threads: int = 0) -> tuple[Ints, Longs]:
        """Token ids of each row of numbers: (int32 [n], int64 offsets [M+1])."""
        del threads
        require_values("values", values)
        ids: list[int] = []
        offsets = [0]
        for row, places in zip(values.tolist(), decimals.tolist(), strict=True):
            for position, value in enumerate(row):
                text = f"{value:.{places}f}"
                ids += self._openings[2 * (position > 0) + text.startswith("-")].tolist()
                whole, _, fraction = text.lstrip("-").partition(".")
                ids += self._of_digits(whole)
                if fraction:
                    ids += self._dot.tolist() + self._of_digits(fraction)
            offsets.append(len(ids))
        return np.array(ids, dtype=np.int32), np.array(offsets, dtype=np.int64)

    def prompts(
        self,
        layout: int,
        head: Ints,
        middle: Ints,
        tail: Ints,
        labels: Ragged,
        values: Floats,
        decimals: Ints,
        captions: Ragged,
        out: Ints | None = None,
        threads: int = 0,
    ) -> tuple[Ints, Longs]:
        """Whole prompts of B groups: (ids, offsets [B*G*K+1])."""
        numbers, ends = self.ids(values, decimals, threads)
        k = len(labels[1]) - 1
        label, block, caption = (
            np.split(ids, offsets[1:-1]) for ids, offsets in (labels, (numbers, ends), captions)
        )
        per_group = len(caption) // (len(values) // k)
        rows: list[Ints] = []
        for asked, words in enumerate(caption):
            group = block[asked // per_group * k :][:k]
            for position in range(k):
                order = [*group[1 : position + 1], group[0], *group[position + 1 :]]
                pieces = [part for pair in zip(label, order, strict=True) for part in pair]
                if layout == 0:
                    rows.append(np.concatenate([head, *pieces, middle, words, tail]))
                else:
                    rows.append(np.concatenate([head, words, middle, *pieces, tail]))
        offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
        total = int(offsets[-1])
        if out is None:
            out = np.empty(total, dtype=np.int32)
        if len(out) < total:
            raise ValueError(f"out: expected room for {total} ids, got {len(out)}")
        out[:total] = np.concatenate(rows)
        return out, offsets


def prompt_tree(
    layout: int,
    head: Ints,
    middle: Ints,
    tail: Ints,
    labels: Ragged,
    blocks: Ragged,
    block_end: Ints,
    captions: Ragged,
) -> tuple[Ints, Longs, Ints, Ints]:
    """Nodes of a group's prompts: (ids [n], offsets [m+1], parent [m], questions [G, K])."""
    n_candidates, n_captions = len(labels[1]) - 1, len(captions[1]) - 1
    nodes: list[list[int]] = [head.tolist()]
    parent = [-1]
    questions = np.empty((n_captions, n_candidates), dtype=np.int32)

    def piece(ragged: Ragged, row: int) -> list[int]:
        return [int(token) for token in ragged[0][ragged[1][row] : ragged[1][row + 1]]]

    def block(position: int, candidate: int) -> list[int]:
        return [*piece(labels, position), *piece(blocks, candidate), *block_end.tolist()]

    def add(ids: list[int], under: int) -> int:
        nodes.append(ids)
        parent.append(under)
        return len(nodes) - 1

    def rotations(root: int, closing: list[int]) -> list[int]:
        """Node that ends each rotation: distractors before the target are shared, once each."""
        before = [root]
        for position in range(n_candidates - 1):
            before.append(add(block(position, position + 1), before[-1]))
        ends = []
        for position in range(n_candidates):
            ids = block(position, 0)
            for later in range(position + 1, n_candidates):
                ids += block(later, later)
            ends.append(add(ids + closing, before[position]))
        return ends

    if layout == 0:
        orders = rotations(0, middle.tolist())
        for caption in range(n_captions):
            for position, order in enumerate(orders):
                questions[caption, position] = add(piece(captions, caption) + tail.tolist(), order)
    else:
        for caption in range(n_captions):
            root = add(piece(captions, caption) + middle.tolist(), 0)
            questions[caption] = rotations(root, tail.tolist())
    offsets = np.cumsum([0] + [len(node) for node in nodes], dtype=np.int64)
    flat = [token for node in nodes for token in node]
    return np.array(flat, dtype=np.int32), offsets, np.array(parent, dtype=np.int32), questions
