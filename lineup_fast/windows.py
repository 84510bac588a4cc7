"""Windows of equal length out of channels: splits, scaling, cutting, filters and sampling.

A window belongs to one split as a whole. Some data sets are held out entirely as `test`; the
others are cut in time into train and val, and no window straddles a cut. With fewer than three
data sets nothing can be held out, and time is cut in three instead. Ready-made windows that do
not say where in their source they come from are split by row.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lineup_fast import counters, kernels
from lineup_fast.readers import Channel
from lineup_fast.sliding import SlidingWindows

SPLITS = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)
SCALE_QUANTILES = (0.005, 0.995)
FLAT_SHARE = 0.05
PRINT_DECIMALS = 12
BLOCK = 1 << 20  # values looked at in one go

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Windows:
    """Windows of one length: values f64[N,T], index of the channel i32[N], position of the first
    value in the source i64[N], split i8[N] (index into SPLITS)."""

    values: Floats
    channel: NDArray[np.int32]
    start: NDArray[np.int64]
    split: NDArray[np.int8]

    def take(self, rows: NDArray[np.intp]) -> Windows:
        return Windows(self.values[rows], self.channel[rows], self.start[rows], self.split[rows])


@dataclass(frozen=True)
class Cut:
    """All windows of one length where they lie in their channels (`places.source` is the index of
    the channel), and their splits i8[N]: what is kept of them is copied last."""

    places: SlidingWindows
    split: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.split)

    def take(self, rows: NDArray[np.intp]) -> Cut:
        return Cut(self.places.take(rows), self.split[rows])

    def blocks(self) -> Iterator[Floats]:
        """The values f64[n,T], a few megabytes at a time."""
        rows = 1 + BLOCK // self.places.steps
        for begin in range(0, len(self), rows):
            yield self.places.rows(slice(begin, begin + rows))

    def copy(self) -> Windows:
        values = self.places.rows(slice(None))
        return Windows(values, self.places.source, self.places.start, self.split)


@dataclass
class SplitPlan:
    """How each channel is divided.

    by : data set → "source" (held out as a whole), "time" or "row"
    by_row : per channel whether it is a ready-made window of unknown place
    spans : per channel the (first position, end, split) it is cut into; ends are exclusive
    fit_end : per channel the position before which its values count for the scaling
    """

    by: dict[str, str] = field(default_factory=dict)
    by_row: list[bool] = field(default_factory=list)
    spans: list[list[tuple[int, int, int]]] = field(default_factory=list)
    fit_end: list[int] = field(default_factory=list)

    @property
    def held_out(self) -> list[str]:
        return sorted(name for name, by in self.by.items() if by == "source")


def data_set(channel: Channel) -> str:
    """The data set a channel belongs to: its source up to the first slash."""
    return channel.source.split("/", 1)[0]


def plan_splits(
    channels: Sequence[Channel],
    split: tuple[float, float, float],
    test_sources: Sequence[str] | None,
    seed: int,
) -> SplitPlan:
    """Decide where every channel is cut; `test_sources` names the data sets to hold out."""
    sizes: Counter[str] = Counter()
    extents: dict[str, tuple[int, int]] = {}
    pieces: Counter[str] = Counter()
    for channel in channels:
        end = channel.start + len(channel.values)
        low, high = extents.get(channel.source, (channel.start, end))
        extents[channel.source] = min(low, channel.start), max(high, end)
        sizes[data_set(channel)] += len(channel.values)
        pieces[channel.source] += 1
    held = _held_out(sizes, split[TEST], test_sources, seed)
    fractions = (split[TRAIN], split[VAL], 0.0 if held else split[TEST])
    total = sum(fractions)
    plan = SplitPlan()
    for channel in channels:
        name, (low, high) = data_set(channel), extents[channel.source]
        length = high - low
        first = low + math.floor(length * fractions[TRAIN] / total + 1e-9)
        second = low + math.floor(length * (fractions[TRAIN] + fractions[VAL]) / total + 1e-9)
        alone = channel.window and pieces[channel.source] == 1
        plan.by_row.append(alone)
        if name in held:
            plan.by[name] = "source"
            plan.spans.append([(low, high, TEST)])
            plan.fit_end.append(first)
        elif alone:
            plan.by.setdefault(name, "row")
            u = counters.fraction(seed, "split", channel.source) * total
            chosen = int(u >= fractions[TRAIN]) + int(u >= fractions[TRAIN] + fractions[VAL])
            plan.spans.append([(low, high, chosen)])
            plan.fit_end.append(high if chosen == TRAIN else low)
        else:
            plan.by[name] = "time"
            parts = [(low, first, TRAIN), (first, second, VAL), (second, high, TEST)]
            plan.spans.append([part for part in parts if part[0] < part[1]])
            plan.fit_end.append(first)
    return plan


def _held_out(
    sizes: Counter[str], share: float, test_sources: Sequence[str] | None, seed: int
) -> set[str]:
    """Data sets held out as a whole: those named, or a random share of them, at least one, which
    holds no more than half of the values."""
    if test_sources is not None:
        unknown = sorted(set(test_sources) - set(sizes))
        if unknown:
            raise ValueError(f"test_sources: expected among {sorted(sizes)}, got {unknown}")
        if test_sources and set(test_sources) == set(sizes):
            raise ValueError("test_sources: expected at least one data set left, got all of them")
        return set(test_sources)
    names = sorted(sizes)
    if len(names) < 3 or share == 0:
        return set()
    wanted = max(1, round(share * len(names)))
    half = sum(sizes.values()) / 2
    chosen: set[str] = set()
    held = 0
    for i in counters.order(len(names), seed, "held out"):
        if len(chosen) < wanted and held + sizes[names[i]] <= half:
            chosen.add(names[i])
            held += sizes[names[i]]
    return chosen or {min(names, key=lambda name: (sizes[name], name))}


def scale_channels(
    channels: Sequence[Channel], plan: SplitPlan, scale: tuple[float, float]
) -> tuple[list[Channel | None], dict[str, tuple[float, float]]]:
    """Map every channel linearly to whole numbers in `scale`, clipped.

    The bounds are the 0.5 % and 99.5 % quantiles of the channel's train part (of the whole data
    set's where it is split by row; of the same early part of the timeline where a data set is held
    out). Returns the channels (None where the train part is constant or empty) and the bounds by
    source.
    """
    fitted: dict[str, list[Floats]] = defaultdict(list)
    keys = []
    for channel, end, alone in zip(channels, plan.fit_end, plan.by_row, strict=True):
        keys.append(data_set(channel) if alone else channel.source)
        fitted[keys[-1]].append(channel.values[: max(0, end - channel.start)])
    low, high = scale
    quantiles: dict[str, tuple[float, float]] = {}
    for key, parts in fitted.items():
        values = np.concatenate(parts)
        if len(values):
            a, b = np.quantile(values, SCALE_QUANTILES)
            quantiles[key] = float(a), float(b)
    scaled: list[Channel | None] = []
    bounds = {}
    for channel, key in zip(channels, keys, strict=True):
        a, b = quantiles.get(key, (0.0, 0.0))
        if not b > a:
            scaled.append(None)
            continue
        bounds[channel.source] = a, b
        unit = (channel.values - a) / (b - a)
        values = np.rint(np.clip(low + unit * (high - low), low, high)) + 0.0
        scaled.append(replace(channel, values=values))
    return scaled, bounds


def cut_channel(
    channel: Channel, spans: Sequence[tuple[int, int, int]], length: int, stride: int
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """(positions, splits) of the windows of a channel, relative to its first value.

    Windows start every `stride` steps after each break or cut; none crosses one.
    """
    size = len(channel.values)
    if channel.window:
        ends = [(a, b, s) for a, b, s in spans if a <= channel.start and channel.start + size <= b]
        fits = size == length and bool(ends)
        return (
            np.zeros(int(fits), dtype=np.int64),
            np.full(int(fits), ends[0][2] if fits else 0, dtype=np.int8),
        )
    starts, splits = [], []
    breaks = np.array(channel.breaks, dtype=np.int64)
    for first, end, split in spans:
        a, b = max(0, first - channel.start), min(size, end - channel.start)
        edges = [a, *breaks[(breaks > a) & (breaks < b)].tolist(), b]
        for left, right in pairwise(edges):
            if right - left >= length:
                starts.append(np.arange(left, right - length + 1, stride, dtype=np.int64))
                splits.append(np.full(len(starts[-1]), split, dtype=np.int8))
    if not starts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int8)
    return np.concatenate(starts), np.concatenate(splits)


def cut_all(channels: Sequence[Channel | None], plan: SplitPlan, length: int, stride: int) -> Cut:
    """The windows of one length of all channels, by channel and time."""
    parts = [np.empty(0)]
    at = [np.empty(0, dtype=np.int64)]
    starts, owners, splits = at.copy(), [np.empty(0, np.int32)], [np.empty(0, np.int8)]
    end = 0
    for index, channel in enumerate(channels):
        if channel is None:
            continue
        first, split = cut_channel(channel, plan.spans[index], length, stride)
        parts.append(channel.values)
        at.append(first + end)
        starts.append(first + channel.start)
        owners.append(np.full(len(first), index, dtype=np.int32))
        splits.append(split)
        end += len(channel.values)
    values = np.concatenate(parts) if end else np.zeros(1)
    places = (np.concatenate(at), length, np.concatenate(owners), np.concatenate(starts))
    return Cut(SlidingWindows(values, *places), np.concatenate(splits))


def flat(values: Floats, scale: tuple[float, float]) -> NDArray[np.bool_]:
    """Rows whose shape was lost to rounding, bool[N]: one value fills more than half of the
    points, or all lie within a twentieth of the scale."""
    ordered = np.sort(values, axis=1)
    length = values.shape[1]
    same = (ordered[:, length // 2 :] == ordered[:, : length - length // 2]).any(axis=1)
    narrow = ordered[:, -1] - ordered[:, 0] < FLAT_SHARE * (scale[1] - scale[0])
    return np.asarray(same | narrow)


def first_of_equals(blocks: Iterable[Floats]) -> NDArray[np.intp]:
    """Rows of all blocks that print differently from every earlier row at 12 decimals, rising."""
    seen: set[bytes] = set()
    kept = []
    for row, key in enumerate(key for values in blocks for key in _printed(values)):
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return np.array(kept, dtype=np.intp)


def _printed(values: Floats) -> Iterator[bytes]:
    """For each row a digest of how it prints at 12 decimals."""
    tiny = np.abs(values).max(axis=1, initial=0.0) < 1e-6
    coarse = np.abs(values) < 1e3  # beyond, rounding to 12 decimals changes nothing
    with np.errstate(over="ignore"):
        keys = np.where(coarse, np.round(values, PRINT_DECIMALS), values) + 0.0
    for row in range(len(values)):
        if tiny[row]:
            key = kernels.format_numbers(values[row] + 0.0, PRINT_DECIMALS).encode()
        else:
            key = keys[row].tobytes()
        yield hashlib.sha256(key).digest()  # whole rows would double the memory


def fair_shares(available: Sequence[int], total: int) -> list[int]:
    """Equal shares of `total`; what one cannot fill goes to the others, the remainder to the
    first ones that can take it."""
    shares = [0] * len(available)
    left = min(total, sum(available))
    while left:
        open_ = [i for i, n in enumerate(available) if shares[i] < n]
        step = max(1, left // len(open_))
        for i in open_:
            extra = min(step, available[i] - shares[i], left)
            shares[i] += extra
            left -= extra
    return shares


def sample_rows(
    cut: Cut, channels: Sequence[Channel], quotas: Sequence[int], seed: int
) -> NDArray[np.intp]:
    """Rows of a sample with quotas[s] windows of split s, in equal shares over the data sets and
    then over the channels of a data set; rising."""
    length = cut.places.steps
    chosen: list[NDArray[np.intp]] = [np.empty(0, dtype=np.intp)]
    for split, quota in enumerate(quotas):
        members: dict[str, dict[int, NDArray[np.intp]]] = defaultdict(dict)
        in_split = np.flatnonzero(cut.split == split)
        if not len(in_split):
            continue
        owners = cut.places.source[in_split]
        by_owner = np.argsort(owners, kind="stable")
        indices, firsts = np.unique(owners[by_owner], return_index=True)
        for index, rows in zip(indices, np.split(in_split[by_owner], firsts[1:]), strict=True):
            members[data_set(channels[index])][int(index)] = rows
        sets = sorted(members)
        sizes = [sum(len(rows) for rows in members[name].values()) for name in sets]
        for name, share in zip(sets, fair_shares(sizes, quota), strict=True):
            groups = sorted(members[name].items())
            parts = fair_shares([len(rows) for _, rows in groups], share)
            for (index, rows), part in zip(groups, parts, strict=True):
                words = (seed, "windows", channels[index].source, length, split)
                picked = counters.order(len(rows), *words)[:part]
                chosen.append(rows[picked])
    return np.sort(np.concatenate(chosen))
