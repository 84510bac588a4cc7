"""Neighbours in a feature space of the user's own.

Candidates are over-fetched by hnswlib where it is installed and there are many series, their
distances are then computed exactly, and the corpus' overlap rule decides who is admissible; how
many of the exact neighbours were found is measured on a sample of items.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import counters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lineup_fast.corpus import Corpus

    Floats = NDArray[np.float64]

log = logging.getLogger(__name__)

OVER_FETCH = 8  # candidates per wanted neighbour
SEARCHED = 2048  # series of one length and split from which on hnswlib is used
MEASURED = 200  # items of the recall sample


@dataclass(frozen=True)
class Found:
    """Pools by id, and the share of exact neighbours that the search found (1: it was exact)."""

    pools: dict[str, list[str]]
    recall: float
    searched: bool


class Lookalikes:
    """A corpus whose pools come from other features; everything else is the corpus' own.

    words: hash of the features. facts: for the record of a run.
    """

    def __init__(self, corpus: Corpus, found: Found, words: str) -> None:
        self._corpus, self._found = corpus, found
        self.recall = found.recall
        self.facts = {"lookalikes_fingerprint": words[:16], "lookalikes_recall": found.recall}
        self.fingerprint = hashlib.sha256(f"{corpus.fingerprint}{words}".encode()).hexdigest()[:16]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._corpus, name)

    def __contains__(self, item: object) -> bool:
        return item in self._corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def pool(self, item: str) -> list[str]:
        """Ids of the item's neighbours, nearest first."""
        return list(self._found.pools[item])


def with_lookalikes(corpus: Corpus, path: Path, *, k: int | None = None) -> Any:
    """The corpus with pools by the features of a .npy file, float [n, d] in the order of its ids.

    k: candidates of a question. Features are z-scored within a length, as φ is.

    Raises:
        ValueError: shape or values do not fit; a series has fewer than k - 1 admissible neighbours.
    """
    items = corpus.ids()
    try:
        features = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"lookalikes: expected a .npy file, got {path} ({error})") from None
    if features.ndim != 2 or len(features) != len(items) or features.shape[1] < 1:
        raise ValueError(
            f"lookalikes: expected shape [{len(items)}, d], one row per id, got {features.shape}"
        )
    if features.dtype.kind not in "fiu" or not np.isfinite(features).all():
        raise ValueError("lookalikes: expected finite numbers, got others")
    features = features.astype(np.float64)
    k = corpus.settings["k"] if k is None else k
    size = max(8, 2 * (k - 1))
    found = neighbours(corpus, items, features, size)
    if found.searched:
        log.warning("look-alikes: %.2f %% of the exact neighbours were found", 100 * found.recall)
    short = sum(len(pool) < k - 1 for pool in found.pools.values())
    if short:
        raise ValueError(
            f"lookalikes: expected {k - 1} admissible neighbours of every series, got fewer "
            f"of {short}"
        )
    return Lookalikes(corpus, found, hashlib.sha256(features.tobytes()).hexdigest())


def neighbours(corpus: Corpus, items: list[str], features: Floats, size: int) -> Found:
    """Up to `size` admissible neighbours of every item, nearest first, ties by row.

    features float64 [n, d], rows as the items. Neighbours share length and split with the item.
    """
    metas = [corpus.meta(item) for item in items]
    pools: dict[str, list[str]] = {}
    hits = wanted = 0
    searched = False
    for length in sorted({meta.length for meta in metas}):
        of_length = [row for row, meta in enumerate(metas) if meta.length == length]
        std = features[of_length].std(axis=0)
        z = (features - features[of_length].mean(axis=0)) / np.where(std > 0, std, 1.0)
        for split in sorted({metas[row].split for row in of_length}):
            members = [row for row in of_length if metas[row].split == split]
            space = Space(corpus, [items[row] for row in members], z[members])
            for row, item in enumerate(space.names):
                pools[item] = space.pool(row, size)
            if space.index is not None:
                searched = True
                for row in counters.order(len(members), "recall")[:MEASURED].tolist():
                    exact = space.pool(row, size, exact=True)
                    hits += len(set(exact) & set(pools[space.names[row]]))
                    wanted += len(exact)
    return Found(pools, hits / wanted if wanted else 1.0, searched)


class Space:
    """Series that may be each other's neighbours. z float64 [n, d], names [n].

    index: what proposes candidates, None where all are looked at.
    """

    def __init__(self, corpus: Corpus, names: list[str], z: Floats) -> None:
        self._corpus, self.names, self._z = corpus, names, z
        self.index = _index(z) if len(names) >= SEARCHED else None

    def pool(self, row: int, size: int, *, exact: bool = False) -> list[str]:
        """Up to `size` admissible neighbours of a row, nearest first by the exact distance."""
        n = len(self.names)
        if self.index is not None and not exact:
            n_near = min(n, OVER_FETCH * size + 1)
            near = np.sort(self.index.knn_query(self._z[row], k=n_near)[0][0].astype(np.int64))
            found = self._first(row, near, size)
            if len(found) == size:
                return found
        return self._first(row, np.arange(n), size)

    def _first(self, row: int, near: NDArray[np.int64], size: int) -> list[str]:
        distance = ((self._z[near] - self._z[row]) ** 2).sum(axis=1)
        found: list[str] = []
        for other in near[np.argsort(distance, kind="stable")].tolist():
            if other != row and self._corpus.admissible(self.names[row], self.names[other]):
                found.append(self.names[other])
                if len(found) == size:
                    break
        return found


def _index(z: Floats) -> Any:
    """An hnswlib index of the rows, None where hnswlib is not installed."""
    try:
        import hnswlib  # type: ignore[import-untyped]
    except ImportError:
        return None
    index = hnswlib.Index(space="l2", dim=z.shape[1])
    index.init_index(max_elements=len(z), ef_construction=200, M=16, random_seed=0)
    index.add_items(z.astype(np.float32), num_threads=1)
    index.set_ef(max(200, 2 * OVER_FETCH * 8))
    return index
