"""Which series of a benchmark the captioner was trained on, or on parts of.

Two tests. A **source interval**: the series lies in the same stretch of the same channel as one of
the training corpus, also where one data set is contained in another at a finer step (`FAMILIES`). A
**shared run**: it has more than max(1, floor(eta T)) consecutive values in common with one, T the
shorter of the two, at the rounding of the corpus (the overlap rule of the neighbours). Runs of one
value repeated are counted but prove nothing: unrelated series share them. Where both were scaled to
whole numbers, unrelated series also share short runs, so more than half of the steps must be equal.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import kernels
from lineup_fast.corpus import run_decimals

if TYPE_CHECKING:
    from lineup_fast.corpus import Corpus
    from trainer.evaluate.benchmark import Benchmark

Floats = NDArray[np.float64]
ETA_SCALED = 0.5
SPLITS = ("train", "val")  # a checkpoint is chosen on val

# Data sets that are one recording at several steps: (name, recording, its steps per step).
# ETTh2 holds every fourth row of ETTm2, and ETTh1 of ETTm1: hourly and 15 min time stamps.
FAMILIES = (
    (re.compile(r"ett[\W_]*h([12])", re.IGNORECASE), "ett{}", 4),
    (re.compile(r"ett[\W_]*m([12])", re.IGNORECASE), "ett{}", 1),
)


@dataclass
class Contamination:
    """What a benchmark shares with a training corpus.

    interval, run: by id, with what. n: series looked at. constant: how many share nothing but a
    run of one value. eta: the share of steps that may be equal. note: what could not be compared.
    """

    n: int
    interval: dict[str, str] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)
    constant: int = 0
    eta: float = 0.2
    note: str = ""

    @property
    def ids(self) -> set[str]:
        """The series that were trained on in whole or in part."""
        return self.interval.keys() | self.run.keys()

    def summary(self) -> dict[str, Any]:
        """Counts and up to five examples, for results.json."""
        found = {**self.run, **self.interval}
        return {
            "n": self.n,
            "shared": len(found),
            "source_interval": len(self.interval),
            "run": len(self.run),
            "constant_run_only": self.constant,
            "eta": self.eta,
            "examples": [f"{id_}: {why}" for id_, why in sorted(found.items())[:5]],
            "note": self.note,
        }


def contamination(benchmark: Benchmark, corpus: Corpus, *, eta: float = 0.2) -> Contamination:
    """What the series of the benchmark share with the train and val items of the corpus."""
    found = Contamination(len(benchmark.ids), eta=eta)
    items = [id_ for split in SPLITS for id_ in corpus.ids(split, k=1)]
    _intervals(benchmark, corpus, items, found)
    ours, how = _units(benchmark)
    if how != _scale_of(corpus):
        found.note = (
            f"values not compared: those of the benchmark are {how}, of the corpus "
            f"{_scale_of(corpus)}; source intervals only"
        )
        return found
    if corpus.settings.get("scale"):
        found.eta = max(eta, ETA_SCALED)
    theirs = _by_length((id_, corpus.series(id_)) for id_ in items)
    constant: set[str] = set()
    for ids, values in _by_length(ours).values():
        for names, trained in theirs.values():
            _runs(ids, values, names, trained, found, constant)
    found.constant = len(constant - found.run.keys())
    return found


# --- source intervals -----------------------------------------------------------------------


def place(source: str, start: int, length: int) -> tuple[str, int, int]:
    """(recording and variable, first step, end) of a window, on the recording's own steps.

    The recording of "fragments:etth1/OT" is ett1; that of a data set without a family is its name
    in lower case.
    """
    data, _, variable = source.lower().rpartition("/")
    data = data.rsplit(":", 1)[-1]
    for pattern, recording, step in FAMILIES:
        match = pattern.search(data)
        if match:
            name = f"{recording.format(match[1])}/{variable}"
            return name, step * start, step * (start + length - 1) + 1
    return f"{data}/{variable}", start, start + length


def _intervals(
    benchmark: Benchmark, corpus: Corpus, items: Sequence[str], found: Contamination
) -> None:
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for id_ in items:
        meta = corpus.meta(id_)
        name, first, end = place(meta.source, meta.start, meta.length)
        spans[name].append((first, end))
    joined = {name: _joined(parts) for name, parts in spans.items()}
    for id_ in benchmark.ids:
        source, start = benchmark.source(id_), benchmark.start(id_)
        name, first, end = place(source, start, len(benchmark.series(id_)))
        if name not in joined:
            continue
        begins, ends = joined[name]
        at = int(np.searchsorted(ends, first, side="right"))  # the first stretch that ends later
        if at < len(begins) and begins[at] < end:
            found.interval[id_] = f"steps {first} to {end - 1} of {name} were trained on"


def _joined(parts: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stretches (begin, end) with those that touch made one, rising."""
    joined: list[list[int]] = []
    for first, end in sorted(parts):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([first, end])
    table = np.array(joined, dtype=np.int64)
    return table[:, 0], table[:, 1]


# --- shared runs ----------------------------------------------------------------------------


def _units(benchmark: Benchmark) -> tuple[Iterator[tuple[str, Floats]], str]:
    """The series in original units where they can be had, and what they are in."""
    meta = benchmark.meta
    mean, std, how = 0.0, 1.0, "in original units"
    if meta.get("scale") == "standard":
        mean, std = meta["mean"], meta["std"]
    elif meta.get("scale") == "range":
        how = f"scaled to {meta['low']:g}..{meta['high']:g}"
    return ((id_, benchmark.series(id_) * std + mean) for id_ in benchmark.ids), how


def _scale_of(corpus: Corpus) -> str:
    scale = corpus.settings.get("scale")
    return f"scaled to {scale[0]:g}..{scale[1]:g}" if scale else "in original units"


def _by_length(
    series: Iterator[tuple[str, Floats]],
) -> dict[int, tuple[list[str], Floats]]:
    rows: dict[int, list[tuple[str, Floats]]] = defaultdict(list)
    for id_, values in series:
        rows[len(values)].append((id_, values))
    return {
        length: ([id_ for id_, _ in some], np.stack([values for _, values in some]))
        for length, some in rows.items()
    }


def _runs(
    ids: Sequence[str],
    values: Floats,
    names: Sequence[str],
    trained: Floats,
    found: Contamination,
    constant: set[str],
) -> None:
    """Adds the series f64[n,T] that share a run with one of the trained f64[m,S]."""
    shorter = min(values.shape[1], trained.shape[1])
    budget = max(1, int(np.floor(found.eta * shorter + 1e-9)))
    decimals = run_decimals(float(np.abs(trained).max()))
    theirs, owner, flat = _grams(trained, budget + 1, decimals)
    if not len(theirs):
        return
    order = np.argsort(theirs[~flat], kind="stable")
    known, owner_of = theirs[~flat][order], owner[~flat][order]
    ours, row, ours_flat = _grams(values, budget + 1, decimals)
    for at in np.flatnonzero(ours_flat & np.isin(ours, theirs[flat])):
        constant.add(ids[row[at]])
    for at in np.flatnonzero(~ours_flat & np.isin(ours, known)):
        id_ = ids[row[at]]
        if id_ in found.run:
            continue
        other = int(owner_of[np.searchsorted(known, ours[at])])
        n = kernels.longest_run(values[row[at]], trained[other], decimals=decimals)
        if n > budget:  # two grams of one hash are not yet equal
            found.run[id_] = f"shares {n} of {len(values[row[at]])} steps with {names[other]}"


def _grams(
    values: Floats, n: int, decimals: int
) -> tuple[NDArray[np.uint64], NDArray[np.intp], NDArray[np.bool_]]:
    """Hashes of all runs of n values, the row each lies in, and whether it is one value n times."""
    count = values.shape[1] - n + 1
    if count < 1:
        empty = np.empty(0, dtype=np.uint64)
        return empty, np.empty(0, dtype=np.intp), np.empty(0, dtype=np.bool_)
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(np.round(values, min(decimals, 300)) + 0.0).view(np.uint64)
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = np.zeros((len(values), count), dtype=np.uint64)
        for step in range(n):
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + bits[:, step : step + count]
    same = np.ones((len(values), count), dtype=np.bool_)
    for step in range(1, n):
        same &= bits[:, step : step + count] == bits[:, :count]
    rows = np.repeat(np.arange(len(values)), count)
    return hashes.ravel(), rows, same.ravel()
