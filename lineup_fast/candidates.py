"""Candidate sets: the described series and the K-1 others that a question is made of.

`draw` is a pure function of (seed, index, id): it does not matter who asks, in which order or in
which process. `fixed` is the same question every time, for validation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lineup_fast import counters, kernels
from lineup_fast.corpus import Corpus

KINDS = ("nearest", "random", "shuffle", "reverse", "swap", "synthetic")
MIN_K, MAX_K = 2, 12
MAX_DECIMALS = 12
MIN_MOVED = 0.25
TRIES = 20

Floats = NDArray[np.float64]
Kind = Literal["nearest", "random", "shuffle", "reverse", "swap", "synthetic"]


class CandidateError(ValueError):
    """This item cannot be asked about; the text says why."""


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """One question without its caption.

    target, distractors : ids; a made-up distractor is called "id:construction:number"
    series : f64[K,T], row 0 the target, then the distractors in their order
    decimals : digits after the point that tell all K apart when printed
    kind : one of KINDS; index : the draw, or None for the fixed set
    """

    target: str
    distractors: tuple[str, ...]
    series: Floats
    decimals: int
    kind: str
    index: int | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CandidateSet):
            return NotImplemented
        mine = (self.target, self.distractors, self.decimals, self.kind, self.index)
        theirs = (other.target, other.distractors, other.decimals, other.kind, other.index)
        return mine == theirs and np.array_equal(self.series, other.series)

    __hash__ = None  # type: ignore[assignment]


def draw(
    corpus: Corpus,
    item: str,
    *,
    k: int,
    seed: int,
    index: int,
    kind: Kind = "nearest",
    decimals: int | Literal["auto"] = "auto",
) -> CandidateSet:
    """K-1 distractors drawn without replacement; a pure function of (seed, index, item).

    kind : "nearest" draws from the pool, "random" from everything admissible in the same length
    and split; "shuffle", "reverse", "swap" (two quarters) and "synthetic" (one of each) make
    them from the target itself
    Raises CandidateError where the item has too few distractors or they print alike.
    Source: the paper's redrawn hard negatives, and its pilot for the made-up ones.
    """
    return _make(corpus, item, k, kind, decimals, (seed, index, item), index)


def fixed(
    corpus: Corpus,
    item: str,
    *,
    k: int,
    kind: Kind = "nearest",
    seed: int = 0,
    decimals: int | Literal["auto"] = "auto",
) -> CandidateSet:
    """The K-1 nearest in order of distance; for the other kinds one draw that never changes."""
    return _make(corpus, item, k, kind, decimals, (seed, "fixed", item), None)


def _make(
    corpus: Corpus,
    item: str,
    k: int,
    kind: str,
    decimals: int | str,
    words: tuple[int | str, ...],
    index: int | None,
) -> CandidateSet:
    if not MIN_K <= k <= MAX_K:
        raise ValueError(f"k: expected {MIN_K} to {MAX_K}, got {k}")
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    target = corpus.series(item)
    if kind in ("nearest", "random"):
        if kind == "nearest":
            names = _nearest(corpus, item, k, words, in_order=index is None)
        else:
            names = _random(corpus, item, k, words)
        others = [corpus.series(name) for name in names]
    else:
        names, others = _made_up(target, item, k, kind, words)
    series = np.stack([target, *others])
    series.flags.writeable = False
    digits = tell_apart(series, decimals)
    return CandidateSet(item, tuple(names), series, digits, kind, index)


def _nearest(
    corpus: Corpus, item: str, k: int, words: tuple[int | str, ...], *, in_order: bool
) -> list[str]:
    pool = corpus.pool(item)
    if len(pool) < k - 1:
        raise CandidateError(f"{item}: expected at least {k - 1} neighbours, got {len(pool)}")
    if in_order:
        return pool[: k - 1]
    return [pool[i] for i in counters.order(len(pool), *words, "nearest")[: k - 1]]


def _random(corpus: Corpus, item: str, k: int, words: tuple[int | str, ...]) -> list[str]:
    """Uniform over the admissible: the first k-1 of them in a random order of all peers."""
    peers = corpus.peers(item)
    found: list[str] = []
    for i in counters.order(len(peers), *words, "random"):
        if corpus.admissible(item, peers[i]):
            found.append(peers[i])
            if len(found) == k - 1:
                return found
    raise CandidateError(f"{item}: expected at least {k - 1} admissible series, got {len(found)}")


def _made_up(
    target: Floats, item: str, k: int, kind: str, words: tuple[int | str, ...]
) -> tuple[list[str], list[Floats]]:
    if kind == "reverse" and k != 2:
        raise ValueError(
            f"kind: expected k=2 with 'reverse', which makes one distractor, got k={k}"
        )
    if kind == "synthetic" and k > 4:
        raise ValueError(f"kind: expected k up to 4 with 'synthetic', got k={k}")
    methods = ("shuffle", "reverse", "swap")[: k - 1] if kind == "synthetic" else (kind,) * (k - 1)
    names: list[str] = []
    made: list[Floats] = []
    for number, method in enumerate(methods):
        made.append(_perturbed(target, made, item, method, (*words, method, number)))
        names.append(f"{item}:{method}:{number}")
    return names, made


def _perturbed(
    target: Floats, sofar: Sequence[Floats], item: str, method: str, words: tuple[int | str, ...]
) -> Floats:
    """A rearrangement that moves at least a quarter of the positions and repeats no other."""
    if method == "swap" and len(target) < 8:
        raise CandidateError(
            f"{item}: expected at least 8 steps to swap quarters of, got {len(target)}"
        )
    for attempt in range(1 if method == "reverse" else TRIES):
        if method == "reverse":
            changed = target[::-1].copy()
        elif method == "shuffle":
            changed = target[counters.order(len(target), *words, attempt)]
        else:
            edges = np.linspace(0, len(target), 5).astype(np.int64)
            blocks = [target[a:b] for a, b in pairwise(edges)]
            i, j = counters.order(4, *words, attempt)[:2]
            blocks[i], blocks[j] = blocks[j], blocks[i]
            changed = np.concatenate(blocks)
        tolerance = 1e-9 * min(1.0, float(np.abs(target).max()))
        moved = float((np.abs(changed - target) > tolerance).mean())
        if moved >= MIN_MOVED and not any(np.array_equal(changed, other) for other in sofar):
            return changed
    raise CandidateError(
        f"{item}: expected a {method} that moves {MIN_MOVED:.0%} of the positions and differs from "
        "the others, found none"
    )


def auto_decimals(target: Floats) -> int:
    """Digits after the point for a target: about four significant ones, 0 to 3; 2 for all zeros.

    Source: the reference's rule, clip(3 - floor(log10 max|x|), 0, 3).
    """
    largest = float(np.abs(target).max())
    if largest == 0:
        return 2
    return min(3, max(0, 3 - math.floor(math.log10(largest))))


def tell_apart(series: Floats, decimals: int | str = "auto") -> int:
    """The fewest decimals, from the wanted ones up, at which all rows f64[K,T] print differently.

    decimals : "auto" (the rule of `auto_decimals` on row 0) or 0 to 12
    Raises CandidateError if two rows still print alike at 12.
    """
    if isinstance(decimals, str):
        if decimals != "auto":
            raise ValueError(f"decimals: expected auto or 0 to {MAX_DECIMALS}, got {decimals!r}")
        decimals = auto_decimals(series[0])
    if not 0 <= decimals <= MAX_DECIMALS:
        raise ValueError(f"decimals: expected auto or 0 to {MAX_DECIMALS}, got {decimals}")
    for digits in range(decimals, MAX_DECIMALS + 1):
        if len({kernels.format_numbers(row, digits) for row in series}) == len(series):
            return digits
    raise CandidateError(f"candidates: two of them print alike even at {MAX_DECIMALS} decimals")
