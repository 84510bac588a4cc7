"""Series and what was said of them → a benchmark with evaluation neighbours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lineup_fast import kernels
from lineup_fast.candidates import CandidateError, fixed
from lineup_fast.corpus import Corpus, item_id, run_decimals
from lineup_fast.readers import MAX_MAGNITUDE, Channel
from lineup_fast.store import FORMAT, Group, Summary
from lineup_fast.windows import PRINT_DECIMALS, TEST, Windows
from trainer.evaluate.benchmark import Benchmark

Floats = NDArray[np.float64]
Neighbours = Literal["filtered", "reference"]
NEIGHBOURS = ("filtered", "reference")
_BLOCK = 256  # rows whose distances are sorted at once


@dataclass(frozen=True, eq=False)
class Item:
    """A series of a benchmark.

    values: f64[T], finite. source, start: where it comes from; with the values they make its id.
    references: what people said of it. group: neighbours come from the same group and length.
    """

    values: Floats
    source: str
    start: int = 0
    references: tuple[str, ...] = ()
    group: str = ""
    domain: str = ""

    @property
    def id(self) -> str:
        """Content hash of values, source and start."""
        return item_id(self.values, self.source, self.start)


@dataclass
class Gathered:
    """What a loader found: items, the channels they were cut from, what was left out and why.

    dropped: reason → how many. meta: settings and files of the loader, JSON types only.
    """

    items: list[Item] = field(default_factory=list)
    channels: dict[str, Floats] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    meta: dict[str, Any] = field(default_factory=dict)


def make_benchmark(
    name: str,
    gathered: Gathered,
    *,
    neighbours: Neighbours = "filtered",
    k: int = 4,
    eta: float = 0.2,
    max_asked_steps: int | None = None,
    threads: int = 0,
) -> Benchmark:
    """The benchmark of the gathered items.

    neighbours: both rules take the nearest in (mean, std, min, max), z-scored within group and
        length. "reference" filters nothing. "filtered" leaves out series that share a run of more
        than max(1, floor(eta T)) values with the described one, its duplicates, and later ones of
        a pair of duplicates.
    k: candidates of a question; pools hold max(8, 2(k-1)). max_asked_steps: identification asks
        no question about longer series (the prompts would not fit).

    Raises:
        ValueError: no item, or under "reference" a group and length with fewer than k members.

    Source: reference evaluation, build_negatives; the filters are those of training.
    """
    if neighbours not in NEIGHBOURS:
        raise ValueError(f"neighbours: expected {' or '.join(NEIGHBOURS)}, got {neighbours!r}")
    if not 2 <= k <= 12:
        raise ValueError(f"k: expected 2 to 12, got {k}")
    items, n_merged = _merged(gathered.items)
    if not items:
        raise ValueError(f"{name}: expected at least one series, got none ({_said(gathered)})")
    rule = {"neighbours": neighbours, "eta": eta, "pool_size": max(8, 2 * (k - 1))}
    corpus = _corpus(name, items, rule, k, threads)
    references = {item.id: item.references for item in items if item.references}
    meta = gathered.meta | {
        "k": k,
        **rule,
        "max_asked_steps": max_asked_steps,
        "dropped": dict(gathered.dropped),
        "merged": n_merged,
    }
    return Benchmark(
        name,
        corpus,
        references,
        _not_asked(corpus, k, max_asked_steps),
        gathered.channels,
        meta,
    )


def _said(gathered: Gathered) -> str:
    return ", ".join(f"{n} {why}" for why, n in gathered.dropped.items()) or "nothing dropped"


def _merged(items: Sequence[Item]) -> tuple[list[Item], int]:
    """Items by length, those of one id with all their references, and how many were merged."""
    by_id: dict[str, Item] = {}
    for item in items:
        if item.values.ndim != 1 or not (np.abs(item.values) <= MAX_MAGNITUDE).all():
            raise ValueError(f"values: expected finite numbers [T], got others in {item.source}")
        known = by_id.get(item.id)
        told = (*known.references, *item.references) if known else item.references
        by_id[item.id] = replace(item, references=tuple(dict.fromkeys(told)))
    found = sorted(by_id.values(), key=lambda item: len(item.values))
    return found, len(items) - len(found)


def _corpus(
    name: str, items: Sequence[Item], rule: Mapping[str, Any], k: int, threads: int
) -> Corpus:
    channels: dict[tuple[str, str], int] = {}
    by_length: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        channels.setdefault((item.source, item.domain), len(channels))
        by_length[len(item.values)].append(item)
    groups = {}
    for length, some in by_length.items():
        values = np.stack([item.values for item in some])
        cut = Windows(
            values,
            np.array([channels[item.source, item.domain] for item in some], dtype=np.int32),
            np.array([item.start for item in some], dtype=np.int64),
            np.full(len(some), TEST, dtype=np.int8),
        )
        groups[length] = _group(cut, some, rule, k, threads)
    settings = {
        "format": FORMAT,
        "k": 1,  # every item is captioned, whether or not it can be asked about
        "lengths": sorted(groups),
        "overlap": "run",
        "features_scale": "zscore",
        "benchmark": name,
        **rule,
    }
    captions = {item.id: item.references[0] for item in items if item.references}
    made = [Channel(source, np.empty(0), domain) for source, domain in channels]
    return Corpus(settings, made, groups, captions, Summary())


def _group(
    cut: Windows, items: Sequence[Item], rule: Mapping[str, Any], k: int, threads: int
) -> Group:
    length = cut.values.shape[1]
    names = sorted({item.group for item in items})
    member = np.array([names.index(item.group) for item in items], dtype=np.int32)
    phi = kernels.features(cut.values, threads=threads)
    z = np.zeros_like(phi)
    for number in range(len(names)):
        own = phi[member == number]
        std = own.std(axis=0)
        z[member == number] = (own - own.mean(axis=0)) / np.where(std > 0, std, 1.0)
    decimals = run_decimals(float(np.abs(cut.values).max()))
    ids = [item.id for item in items]
    size = rule["pool_size"]
    if rule["neighbours"] == "reference":
        for number, group in enumerate(names):
            n = int((member == number).sum())
            if n < k:
                raise ValueError(
                    f"neighbours: expected at least {k} series of {length} steps in "
                    f"{group or 'the benchmark'}, got {n}; 'filtered' asks no question about them"
                )
        return Group(ids, cut, phi, _nearest(z, member, size), decimals, length)
    max_run = max(1, int(np.floor(rule["eta"] * length + 1e-9)))
    pool = kernels.neighbours(
        z, cut.values, k=4 * size, max_run=max_run, decimals=decimals, group=member,
        threads=threads,
    )  # fmt: skip
    return Group(ids, cut, phi, _distinct(pool, cut.values, size), decimals, max_run)


def _nearest(z: Floats, member: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """The nearest of the same group, whatever they share, i32[N,size]; ties by index."""
    pool = np.full((len(z), size), -1, dtype=np.int32)
    for number in np.unique(member):
        rows = np.flatnonzero(member == number)
        for begin in range(0, len(rows), _BLOCK):
            block = rows[begin : begin + _BLOCK]
            distance = ((z[block, None] - z[None, rows]) ** 2).sum(axis=2)
            distance[np.arange(len(block)), np.arange(begin, begin + len(block))] = np.inf
            order = np.argsort(distance, axis=1, kind="stable")[:, : min(size, len(rows) - 1)]
            pool[block, : order.shape[1]] = rows[order]
    return pool


def _distinct(pool: NDArray[np.int32], values: Floats, size: int) -> NDArray[np.int32]:
    """The first `size` of each row, without those that equal an earlier one of the row."""
    printed = np.round(values, PRINT_DECIMALS) + 0.0
    _, alike = np.unique(printed, axis=0, return_inverse=True)
    kept = np.full((len(pool), size), -1, dtype=np.int32)
    for row, entries in enumerate(pool):
        entries = entries[entries >= 0]
        _, first = np.unique(alike[entries], return_index=True)
        chosen = entries[np.sort(first)][:size]
        kept[row, : len(chosen)] = chosen
    return kept


def _not_asked(corpus: Corpus, k: int, max_steps: int | None) -> dict[str, str]:
    """By id, why no question can be asked."""
    found = {}
    for id_ in corpus.ids():
        n_steps = len(corpus.series(id_))
        if max_steps is not None and n_steps > max_steps:
            found[id_] = f"{n_steps} steps, questions are asked up to {max_steps}"
            continue
        try:
            fixed(corpus, id_, k=k)
        except CandidateError as error:
            found[id_] = str(error).removeprefix(f"{id_}: ")
    return found
